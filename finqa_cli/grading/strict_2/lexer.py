r"""Splits an answer into tokens: numerals, words, symbols, line ends, and malformed parts.

A numeral has one of a few notations: `1,234.5`, `1 234,5`, `1'234`, `1_234`, `12.345,6`, `1.2e3`. Groups have three
digits, and the first never begins with 0, so that `0,005` and `1,23,4` are malformed. A list without blanks (`58,59`)
is split into its parts. Letters directly beside digits are malformed (`5i`, `2O22`), unless they are a unit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

LONGEST_NUMERAL = 60
"""Largest number of characters. Python takes quadratic time for long integers, and no honest number is that long."""

MOST_TOKENS = 900
"""Largest number of tokens. Prose of 4096 bytes has fewer; a text with more is not an answer."""

MOST_NUMERALS = 150


class Mark(Enum):
    """Kinds of tokens."""

    NUMERAL = "numeral"
    WORD = "word"
    SYMBOL = "symbol"
    LINE = "line"
    YEAR = "year"
    """A year that is written as such: `FY21`, `December 31, 2022`."""
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Token:
    """A token.

    Attributes:
        mark: Its kind.
        text: The text as written; a numeral without its separators, a year as four digits.
        start: Where it begins.
        end: Where it ends.
    """

    mark: Mark
    text: str
    start: int
    end: int


_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)"
)
_YEAR = r"(?:19|20)[0-9]{2}"
_LEXEMES = re.compile(
    r"(?P<line>[ \x1f]*\n[ \n\x1f]*)|(?P<blank>[ \x1f]+)"
    rf"|(?P<date>{_MONTH}\.?[ ](?:[0-9]{{1,2}}(?:st|nd|rd|th)?,?[ ])?(?P<y1>{_YEAR})(?![0-9])"
    rf"|[0-9]{{1,2}}(?:st|nd|rd|th)?[ ]{_MONTH}\.?,?[ ](?P<y2>{_YEAR})(?![0-9])"
    rf"|(?P<y3>{_YEAR})-[01][0-9]-[0-3][0-9](?![0-9])|[0-3]?[0-9]/[0-3]?[0-9]/(?P<y4>{_YEAR})(?![0-9/])|(?<![0-9.,])(?P<y5>{_YEAR})'s(?![a-z]))"
    rf"|(?P<short>(?<![\w'])'(?P<syear>[0-2][0-9]|9[0-9])(?![0-9]|[.,][0-9]|[^'\n]{{0,80}}'(?![0-9])))"
    rf"|(?P<fy>(?:fy|cy)[ ]?'?(?P<fyear>{_YEAR}|[0-9]{{2}})(?![0-9.,]?[0-9]))(?![a-z])"
    r"|(?P<named>i\.e\.|e\.g\.|approx\.|vs\.|10-[kq]|20-f|8-k|[1-9][0-9]{0,2}(?:st|nd|rd|th)|[qh][1-4]|s&p 500"
    r"|[1-9][0-9]{0,2}-(?:year|yr|month|week|day|quarter)s?)"
    r"(?![a-z0-9])"
    r"|(?P<numeral>(?:[1-9][0-9]{0,2}(?:[ ][0-9]{3}(?![0-9]))+(?:[.,][0-9]+)*|\.?[0-9](?:[0-9]|[.,'_](?=[0-9]))*)"
    r"(?:e[-+]?[0-9]{1,3}(?![a-z0-9]))?)"
    r"|(?P<word>[^\W\d_]+(?:['&./-]?[^\W\d_]+)*(?:'(?![\w]))?)"
    r"|(?P<symbol>.)",
    re.DOTALL,
)
_PLAIN = re.compile(r"(?:0|[1-9][0-9]*)?(?:\.[0-9]+)?")
_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?P<mark>[,'_ ])[0-9]{3}(?:(?P=mark)[0-9]{3})*(?P<rest>\.[0-9]+)?")
_EUROPEAN = re.compile(r"[1-9][0-9]{0,2}(?:(?P<mark>[. ])[0-9]{3})(?:(?P=mark)[0-9]{3})*,[0-9]{1,9}")
_DOTTED = re.compile(r"[1-9][0-9]{0,2}(?:\.[0-9]{3}){2,}")
_INDIAN = re.compile(r"[1-9][0-9]?(?:,[0-9]{2}){2,},[0-9]{3}(?:\.[0-9]+)?")
"""`9,51,34,82,000`: groups of two before the last one of three. A single group of two may be an error: malformed."""
_EXPONENT = re.compile(r"e([-+]?[0-9]{1,3})\Z")
_POWER = re.compile(r"[ ]?(?:×|x|\*)[ ]?10(?:\^|\*\*)[({]?([-+]?[0-9]{1,2})[)}]?(?![0-9.])")  # noqa: RUF001


def tokens(text: str) -> list[Token]:
    """Splits a text in lower case, in linear time. After too many tokens, the rest is one malformed token."""
    found: list[Token] = []
    position = numerals = 0
    while position < len(text):
        if len(found) > MOST_TOKENS or numerals > MOST_NUMERALS:
            return [*found, Token(Mark.MALFORMED, "...", position, len(text))]
        match = _LEXEMES.match(text, position)
        if match is None:  # `.` of the last group matches anything
            break
        kind, start, end = match.lastgroup or "", position, match.end()
        position = end
        if match["date"]:
            year = next(match[name] for name in ("y1", "y2", "y3", "y4", "y5") if match[name])
            found.append(Token(Mark.YEAR, year, start, end))
        elif match["fy"]:
            year = match["fyear"]
            found.append(Token(Mark.YEAR, year if len(year) == 4 else f"20{year}", start, end))
        elif match["short"]:
            year = match["syear"]
            found.append(Token(Mark.YEAR, f"{'19' if year > '89' else '20'}{year}", start, end))
        elif kind == "numeral":
            if power := _POWER.match(text, end):
                position = power.end()
            numerals += 1
            found += _numerals(match[0], power[1] if power else "", start, position)
        elif kind != "blank":
            found.append(Token(_MARKS.get(kind, Mark.SYMBOL), match[0], start, end))
    return found


_MARKS = {"line": Mark.LINE, "word": Mark.WORD, "named": Mark.WORD, "symbol": Mark.SYMBOL}


def _numerals(written: str, power: str, start: int, end: int) -> list[Token]:
    """Returns one numeral, or the parts of a list without blanks, or a malformed token."""
    exponent = _EXPONENT.search(written)
    digits = written[: exponent.start()] if exponent else written
    number = _normal(digits)
    if number is not None and len(written) <= LONGEST_NUMERAL and not (exponent and power):
        tail = exponent[1] if exponent else power
        return [Token(Mark.NUMERAL, f"{number}e{tail}" if tail else number, start, end)]
    if number is None and not exponent and not power:
        spaced = re.split(r"(?<=[0-9]) (?=[0-9])", digits)
        separator = " " if len(spaced) > 1 else ","
        if digits.count(separator) > MOST_NUMERALS:
            return [Token(Mark.MALFORMED, digits[:LONGEST_NUMERAL], start, end)]
        parts = [_normal(part) for part in digits.split(separator)]
        safe = separator == " " or len(digits.split(",")[0]) > 3 or all(len(part or "") != 3 for part in parts[1:])
        if safe and len(written) <= 4096 and all(part is not None for part in parts):
            found, place = [], start
            for part, text in zip(parts, digits.split(separator), strict=True):
                found.append(Token(Mark.NUMERAL, part or "", place, place + len(text)))
                place += len(text) + 1
                found.append(Token(Mark.SYMBOL, "," if separator == "," else " ", place - 1, place))
            return found[:-1]
    return [Token(Mark.MALFORMED, written[:LONGEST_NUMERAL], start, end)]


def _normal(digits: str) -> str | None:
    """Returns a numeral with a decimal point and without separators, or None if it is malformed."""
    if len(digits) > LONGEST_NUMERAL:
        return None
    if _PLAIN.fullmatch(digits):
        return digits
    if _GROUPED.fullmatch(digits):
        return re.sub("[,'_ ]", "", digits)
    if _EUROPEAN.fullmatch(digits):
        return digits.replace(".", "").replace(" ", "").replace(",", ".")
    if _INDIAN.fullmatch(digits):
        return digits.replace(",", "")
    return digits.replace(".", "") if _DOTTED.fullmatch(digits) else None
