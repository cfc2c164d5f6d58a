"""Conversion of cells as people write them: numbers with separators, brackets and percent signs, dates, blanks."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from finqa_cli.data.dataset import Cell
from finqa_cli.data.question_files.field_values import text_fault

Decimal = Literal[".", ","]
Percent = Literal["fraction", "text"]
Dates = Literal["auto", "day-first", "month-first"]

LONGEST_NUMBER = 80
_INTEGER_DIGITS = 18
"""Number of decimal digits that always fit into a signed 64-bit integer, as SQLite has."""

_LARGEST_DIGITS = 300

_BLANK = re.compile(r"[-\u2010-\u2015\u2212.*]{1,4}|n\.?/?a\.?|n/m|nm|nil|none|null|nan|#n/a", re.IGNORECASE)
"""Marks for "no value" in a column of numbers."""

_SHEET_ERRORS = frozenset({"#DIV/0!", "#N/A", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!"})
_IDENTIFIER = re.compile(r"0[0-9]+")
_MINUS = "-\u2010\u2011\u2012\u2013\u2212"
_SPACES = " \u00a0\u2009\u202f'\u2019"
"""Thousands separators other than a comma or a point."""


_AGAIN = re.compile(r"(?P<number>[^()]*[0-9%]) ?\((?P<again>[^()]*[0-9][^()]*)\)")
_MARKS = re.compile(rf"[{_MINUS}$%\s]")


def _number_pattern(point: str, comma: str) -> re.Pattern[str]:
    groups = "|".join(rf"[0-9]{{1,3}}(?:{re.escape(mark)}[0-9]{{3}})+" for mark in (comma, *_SPACES))
    digits = rf"(?:{groups}|[0-9]+)(?:{re.escape(point)}[0-9]*)?|{re.escape(point)}[0-9]+"
    return re.compile(
        rf"(?P<open>\(\s?)?(?P<sign>[{_MINUS}+]\s?)?(?P<money>[$€£¥]\s?)?(?P<inner>\(\s?|[{_MINUS}+])?"
        rf"(?P<digits>{digits})(?P<exponent>[eE][-+]?[0-9]{{1,3}})?"
        rf"\s?(?P<percent>%?)(?P<close>\s?\))?(?P<after>\s?%)?(?P<unit>\s?[$€£¥])?(?P<trailing>-)?"
    )


_PATTERNS = {".": _number_pattern(".", ","), ",": _number_pattern(",", ".")}

_GROUPED = {mark: re.compile(rf"[^0-9%]*[1-9][0-9]{{0,2}}{re.escape(mark)}[0-9]{{3}}[^0-9%]*") for mark in ".,"}
"""A number with one group of thousands in the other convention: `4.120` where the point is the decimal mark."""

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            *(("jan", "january"), ("feb", "february"), ("mar", "march"), ("apr", "april"), ("may",), ("jun", "june")),
            *(("jul", "july"), ("aug", "august"), ("sep", "sept", "september"), ("oct", "october")),
            *(("nov", "november"), ("dec", "december")),
        ),
        start=1,
    )
    for name in names
}
_ISO = re.compile(r"(?P<year>[0-9]{4})([-/.])(?P<month>[0-9]{1,2})\2(?P<day>[0-9]{1,2})")
_NUMERIC_DATE = re.compile(r"(?P<first>[0-9]{1,2})([-/.])(?P<second>[0-9]{1,2})\2(?P<year>[0-9]{4})")
_NAMED_DATE = re.compile(
    r"(?:(?P<day>[0-9]{1,2})[-. ]{1,2}(?P<month>[A-Za-z]{3,9})\.?|(?P<month2>[A-Za-z]{3,9})\.? (?P<day2>[0-9]{1,2}))"
    r"[-, ]{1,2}(?P<year>[0-9]{4})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRules:
    """How cells are read.

    Attributes:
        convert: Whether texts are converted to numbers and dates.
        decimal: The decimal mark.
        percent: `fraction` reads 12.5% as 0.125; `text` keeps the text.
        dates: Order of day and month in dates such as 3/4/2024; `auto` takes it from the other dates of the column.
    """

    convert: bool = True
    decimal: Decimal = "."
    percent: Percent = "fraction"
    dates: Dates = "auto"


@dataclass(slots=True)
class Conversions:
    """Counts what the import changed, with the first example of each kind."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, place: str, before: object, after: object = None) -> None:
        """Counts one change."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind not in self.examples:
            shown = f" -> {after!r}" if after is not None else ""
            self.examples[kind] = f"{place}: {str(before)[:60]!r}{shown}"

    def document(self) -> list[dict[str, object]]:
        """Returns one JSON object per kind, the most frequent first."""
        kinds = sorted(self.counts, key=lambda kind: (-self.counts[kind], kind))
        return [{"kind": kind, "count": self.counts[kind], "example": self.examples[kind]} for kind in kinds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A text that was read as a number.

    Attributes:
        marks: Kinds of notation in the text other than digits, a point and a leading minus, as the report names them.
    """

    value: int | float
    marks: tuple[str, ...]
    is_percent: bool


def read_number(text: str, mark: Decimal = ".") -> Reading | None:
    """Returns the number in a text, or None if the text is not a number.

    `$1,234`, `(5)`, `-$6.5`, `12.5%`, `1 234`, `7-` and `1.2e5` are numbers. `-4 ( 4 )` is a number too, because FinQA
    repeats negative numbers and percentages in brackets. `007` is not a number but an identifier.
    """
    if not text or len(text) > LONGEST_NUMBER:
        return None
    if again := _AGAIN.fullmatch(text):
        reading = read_number(again["number"], mark)
        if reading is None or _MARKS.sub("", again["number"]) != _MARKS.sub("", again["again"]):
            return None
        return replace(reading, marks=(*reading.marks, "numbers repeated in brackets"))
    if (match := _PATTERNS[mark].fullmatch(text)) is None:
        return None
    opened = bool(match["open"]) + (match["inner"] or "").startswith("(")
    signs = [sign for sign in ((match["sign"] or "").strip(), match["inner"] or "", match["trailing"] or "") if sign]
    signs = [sign for sign in signs if not sign.startswith("(")]
    if opened != bool(match["close"]) or opened + len(signs) > 1 or (match["money"] and match["unit"]):
        return None
    grouping = "," if mark == "." else "."
    plain = re.sub(rf"[{re.escape(_SPACES + grouping)}]", "", match["digits"]).replace(",", ".")
    if _IDENTIFIER.fullmatch(plain):
        return None
    percent = bool(match["percent"] or match["after"])
    if match["percent"] and match["after"]:
        return None
    negative = bool(opened or (signs and signs[0] != "+"))
    kinds = {
        "negative numbers in brackets": bool(opened),
        "other minus signs": bool(match["trailing"]) or (bool(signs) and signs[0] not in "+-"),
        "thousands separators": any(sign in match["digits"] for sign in (grouping, *_SPACES)),
        "decimal commas": mark == "," and "," in match["digits"],
        "currency signs": bool(match["money"] or match["unit"]),
        "percentages": percent,
    }
    value = _value(plain, match["exponent"] or "", percent)
    if value is None:
        return None
    marks = tuple(kind for kind, there in kinds.items() if there)
    return Reading(value=-value if negative else value, marks=marks, is_percent=percent)


def _value(digits: str, exponent: str, percent: bool) -> int | float | None:
    if digits.isdigit() and not exponent and not percent:
        return int(digits) if len(digits) <= _INTEGER_DIGITS else None
    exact = decimal.Decimal(f"{digits}{exponent}")
    value = float(exact.scaleb(-2) if percent else exact)
    return value if math.isfinite(value) else None


def convert_columns(
    columns: Sequence[str], rows: Sequence[Sequence[object]], rules: CellRules, found: Conversions, where: str
) -> tuple[tuple[Cell, ...], ...]:
    """Returns the rows with cells of plain types: numbers, texts and None.

    In a numeric column, at least half of the filled cells are numbers. Its numbers are converted, its marks for "no
    value" become None, and other texts stay and are counted. A column with an identifier such as `007` stays text. The
    first of several columns contains the names of the rows, so it is not numeric. Dates become ISO texts.

    Args:
        columns: Names, for examples.
        rows: [R][C] cells as they were read.
        rules: What to convert.
        found: Counts what is changed.
        where: `company/table`, for examples.

    Raises:
        ValueError: A cell has an unsupported value; the arguments are index of the row, index of the column, reason.
    """
    by_column = []
    for place, name in enumerate(columns):
        cells = [_plain(row[place], number, place) for number, row in enumerate(rows)]
        names_rows = place == 0 and len(columns) > 1
        by_column.append(_column(name, cells, rules, found, where, names_rows=names_rows))
    return tuple(zip(*by_column, strict=True)) if by_column else ()


def _plain(value: object, row: int, column: int) -> Cell:
    """Returns a value of a library or database as a cell."""
    if value is None or isinstance(value, str):
        if value is not None and (reason := text_fault(value)):
            raise ValueError(row, column, reason)
        return value
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        if abs(value) >= 10**_LARGEST_DIGITS:
            raise ValueError(row, column, f"is a number of more than {_LARGEST_DIGITS} digits")
        return value if abs(value) < 10**_INTEGER_DIGITS else str(value)
    if isinstance(value, decimal.Decimal):
        value = int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
        return _plain(value, row, column)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(sep=" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    kind = "binary data" if isinstance(value, bytes) else f"of type {type(value).__name__}"
    raise ValueError(row, column, f"a cell must be a text or a number, but is {kind}")


def _column(
    name: str, cells: Sequence[Cell], rules: CellRules, found: Conversions, where: str, *, names_rows: bool
) -> list[Cell]:
    def place(number: int) -> str:
        return f"{where} row {number + 1}, column {name!r}"

    if not rules.convert:
        return [None if isinstance(cell, str) and not cell.strip() else cell for cell in cells]
    tidy: list[Cell] = []
    for number, cell in enumerate(cells):
        if isinstance(cell, str) and cell in _SHEET_ERRORS:
            found.add("spreadsheet errors read as empty", place(number), cell)
            tidy.append(None)
        else:
            tidy.append((cell.strip() or None) if isinstance(cell, str) else cell)
    texts = {cell for cell in tidy if isinstance(cell, str)}
    if not texts:
        return tidy
    readings = {text: read_number(text, rules.decimal) for text in texts}
    if any(_IDENTIFIER.fullmatch(text) for text in texts):
        return tidy
    filled = [cell for cell in tidy if cell is not None and not (isinstance(cell, str) and _BLANK.fullmatch(cell))]
    numbers = sum(not isinstance(cell, str) or readings[cell] is not None for cell in filled)
    if numbers and 2 * numbers >= len(filled) and not names_rows:
        places = [place(number) for number in range(len(tidy))]
        _count_possible_thousands(tidy, readings, rules.decimal, found, places)
        return list(_numbers(tidy, readings, rules, found, place_of=places))
    if dates := _dates([str(cell) for cell in filled], rules.dates):
        return list(_with_dates(tidy, dates, found, place_of=[place(number) for number in range(len(tidy))]))
    if dates is None:
        number = next(number for number, cell in enumerate(tidy) if cell is not None)
        found.add(
            "columns of dates whose order of day and month is ambiguous, kept as texts", place(number), tidy[number]
        )
    return tidy


def _count_possible_thousands(
    cells: Sequence[Cell], readings: dict[str, Reading | None], mark: Decimal, found: Conversions, place_of: list[str]
) -> None:
    """Counts numbers such as `4.120` in a column in which all fractions have three decimals and some numbers are whole.

    They are read as fractions, but may use the other convention, where the mark separates thousands.
    """
    read = [(cell, readings[cell], place) for cell, place in zip(cells, place_of, strict=True) if isinstance(cell, str)]
    fractions = [(cell, reading, place) for cell, reading, place in read if reading is not None and mark in cell]
    whole = any(reading is not None and mark not in cell for cell, reading, _ in read)
    if not whole or not all(_GROUPED[mark].fullmatch(cell) for cell, _, _ in fractions):
        return
    other = "," if mark == "." else "."
    for cell, reading, place in fractions:
        assert reading is not None
        kind = f"numbers with three decimals beside whole numbers (if these are thousands: --decimal {other})"
        found.add(kind, place, cell, reading.value)


def _numbers(
    cells: Sequence[Cell],
    readings: dict[str, Reading | None],
    rules: CellRules,
    found: Conversions,
    place_of: list[str],
) -> Iterator[Cell]:
    for cell, place in zip(cells, place_of, strict=True):
        if not isinstance(cell, str):
            yield cell
            continue
        reading = readings[cell]
        if reading is None and _BLANK.fullmatch(cell):
            found.add("markers for missing values", place, cell)
            yield None
        elif reading is None:
            found.add("texts in numeric columns, kept", place, cell)
            yield cell
        elif reading.is_percent and rules.percent == "text":
            found.add("percentages kept as texts", place, cell)
            yield cell
        else:
            for kind in reading.marks:
                found.add(kind, place, cell, reading.value)
            yield reading.value


def _dates(texts: Sequence[str], order: Dates) -> dict[str, str] | None:
    """Returns text -> ISO date if all texts are dates, {} if they are not, None if day and month are ambiguous."""
    if not texts:
        return {}
    numeric = [match for text in texts if (match := _NUMERIC_DATE.fullmatch(text))]
    if order == "auto" and numeric:
        day_first = any(int(match["first"]) > 12 for match in numeric)
        month_first = any(int(match["second"]) > 12 for match in numeric)
        if day_first and month_first:
            return {}
        if not day_first and not month_first and any(match["first"] != match["second"] for match in numeric):
            return None if len(numeric) == len(texts) else {}
        order = "day-first" if day_first else "month-first"
    found = {text: _iso(text, order) for text in texts}
    return {text: date for text, date in found.items() if date} if all(found.values()) else {}


def _iso(text: str, order: Dates) -> str:
    if match := _ISO.fullmatch(text):
        parts = match["year"], match["month"], match["day"]
    elif match := _NUMERIC_DATE.fullmatch(text):
        first, second = match["first"], match["second"]
        parts = match["year"], *((second, first) if order == "day-first" else (first, second))
    elif match := _NAMED_DATE.fullmatch(text):
        month = _MONTHS.get((match["month"] or match["month2"]).lower(), 0)
        parts = match["year"], str(month), match["day"] or match["day2"]
    else:
        return ""
    try:
        return datetime.date(int(parts[0]), int(parts[1]), int(parts[2])).isoformat()
    except ValueError:
        return ""


def _with_dates(
    cells: Sequence[Cell], dates: dict[str, str], found: Conversions, place_of: list[str]
) -> Iterator[Cell]:
    for cell, place in zip(cells, place_of, strict=True):
        if cell is None or (date := dates.get(str(cell))) is None:
            if cell is not None:
                found.add("markers for missing values", place, cell)
            yield None
        else:
            if date != cell:
                found.add("dates", place, cell, date)
            yield date
