"""What a cell of a grid is: a number, a period, a mark such as `$`, a dash, or a text. Pure."""

from __future__ import annotations

import datetime
import re
from functools import lru_cache

from finqa_cli.data.own_tables.cell_numbers import Mark, is_dash, is_year, read_number

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec)[a-z]*\.?"
_YEAR = r"(?:19|20)[0-9]{2}"
_DATED = re.compile(
    rf"(?:(?:[a-z]+ ){{0,5}}(?:ended|ending|as of|at|through|to) )?(?:{_MONTH} [0-9]{{1,2}},? ?{_YEAR}"
    rf"|[0-9]{{1,2}}[. -]{{1,2}}{_MONTH},?[ -]{_YEAR}|{_MONTH},?[ -]{_YEAR}|{_YEAR}-[0-9]{{2}}(?:-[0-9]{{2}})?"
    rf"|[0-9]{{1,2}}[/.][0-9]{{1,2}}[/.]{_YEAR}|(?:fy|fiscal|fiscal year|cy|year) ?'?(?:{_YEAR}|[0-9]{{2}})"
    rf"|q[1-4][ -]?'?(?:{_YEAR}|[0-9]{{2}})|[1-4]q ?'?(?:{_YEAR}|[0-9]{{2}})|{_YEAR} ?q[1-4]|{_YEAR}(?:[ae]| ?\*+)?"
    rf"|{_YEAR} ?(?:[-/\u2013]|to) ?(?:{_YEAR}|[0-9]{{2}}))"
    r"(?: (?:[(\[]\w{1,12}[)\]]|usd \(\$\).{0,60}|shares.{0,30}))*"
)
"""A period that has its year."""
FOOTNOTE = re.compile(
    r"\([0-9a-z]{1,2}\)|\[[0-9a-z]{1,2}\](?:\[[0-9a-z]{1,2}\])*|\*{1,3}|[\u2020\u2021\u00b9\u00b2\u00b3]{1,2}"
)
_MARKS = re.compile(rf"[$\u20ac\u00a3\u00a5\u20b9]|[A-Z]{{1,3}}\$|[()%*]{{1,3}}|{FOOTNOTE.pattern}")
"""Cells of a layout column: currencies, closing brackets, percent signs and footnote marks."""
BEFORE = re.compile(r"\(?(?:[A-Z]{0,3}[$\u20ac\u00a3\u00a5\u20b9])\(?|\(")
_PART = re.compile(r"\(?[$\u20ac\u00a3\u00a5]?\(?[0-9][0-9.,]*\)?%?")
UNIT = re.compile(
    r"(?:\(?\b(?:(?:all|amounts|figures|expressed|stated|dollars|euros|shares|usd|eur|gbp) ){0,3}"
    r"in (?:[a-z.$\u20ac\u00a3]{1,12} ){0,3}"
    r"(?:thousands?|millions?|billions?|dollars|euros?|usd|eur|gbp|crores?|lakhs?|percent|shares)\b[^)]{0,80}\)?"
    r"|\(?[$\u20ac\u00a3] in (?:thousands?|millions?|billions?)[^)]{0,60}\)?"
    r"|\(?(?:us\$|usd|eur|[$\u20ac\u00a3]) ?(?:000s?|m|mm|bn|k|mio)\.?\)?|\(000s?\)"
    r"|\(?(?:thousands|millions|billions)(?: of [a-z. $]{1,20})?\)?)",
    re.IGNORECASE,
)
"""The unit of a table as titles give it."""


def text_of(cell: object) -> str:
    """Returns a cell as the text of a name: whole floats without point, dates without midnight, single blanks."""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return " ".join(str("" if cell is None else cell).removesuffix(" 00:00:00").split())


def is_dated(text: str) -> bool:
    """Returns whether a text is a year, a date, or another period that has its year, such as `Q1 2024`."""
    return _kind_of_text(text) == "dated"


@lru_cache(maxsize=65_536)
def _kind_of_text(text: str) -> str:
    if is_year(text):
        return "dated"
    if len(text) <= 120 and _DATED.fullmatch(text.lower()):
        return "dated"
    marks: tuple[Mark, ...] = (".", ",")
    for mark in marks:
        if (reading := read_number(text, mark)) and not reading.is_doubtful:
            return "dated" if reading.note and is_year(str(reading.value)) else "number"
    if len(text) <= 6 and _MARKS.fullmatch(text):
        return "mark"
    if is_dash(text):
        return "dash"
    if len(text) <= 40 and _PART.fullmatch(text):
        return "number"
    return "text"


def kind_of(cell: object) -> str:
    """Returns `dated` for a year or a period with its year, `number`, `mark`, `dash`, `text`, or `` for no cell."""
    if cell is None:
        return ""
    if isinstance(cell, datetime.date):
        return "dated"
    text = text_of(cell)
    return _kind_of_text(text) if text else ""
