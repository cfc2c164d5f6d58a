"""Reads one cell as a number: what filings and spreadsheets write around it, then the grammar of `strict-3`. Pure."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from finqa_cli.grading.numbers import NO_UNIT, Kind
from finqa_cli.grading.strict_3.amounts import currencies, find_amounts

Mark = Literal[".", ","]
"""A decimal mark."""

LONGEST_NUMBER = 80
INTEGER_DIGITS = 18
"""Number of decimal digits that always fit into a signed 64-bit integer, as SQLite has."""

IDENTIFIER = re.compile(r"0[0-9]+")
YEARS = range(1900, 2101)
_CODES = (
    "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF "
    "CHF CLP CNH CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD "
    "HKD HNL HRK HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KRW KWD KYD KZT LAK LBP LKR LRD LSL "
    "LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR "
    "PLN PYG QAR RMB RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SYP SZL THB TJS TMT TND TOP "
    "TRY TTD TWD TZS UAH UGX USD UYU UZS VES VND VUV WST XAF XCD XOF XPF YER ZAR ZMW ZWL "
)
"""ISO 4217, and RMB."""
_MONEY = rf"(?:(?:[A-Z]{{1,3}}\s?)?\$|(?:{'|'.join(_CODES.split())})(?![A-Za-z])|Rs\b\.?)"
"""A currency, after `_plain` has put `$` in place of every currency sign."""
_SIGNS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"), "-")
_SPACES = dict.fromkeys(map(ord, "\u00a0\u2007\u2009\u202f\t\n\r"), " ")
_SIMPLE = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?", re.ASCII)
_CELL = re.compile(
    rf"(?P<open>\( ?)?(?P<sign>[-+] ?)?(?P<money>{_MONEY} ?)?(?P<inner>\( ?|[-+] ?)?(?P<money2>{_MONEY} ?)?"
    rf"(?P<digits>[0-9][0-9.,' ]*[0-9]|[0-9]\.?|\.[0-9]+)(?P<exponent>[eE][-+]?[0-9]{{1,3}}(?![0-9]))?"
    rf"(?P<unit>[^()0-9]*?)(?P<close> ?\))?(?P<after>[^()0-9]*?)(?P<trailing>-)?"
)
_MONEY_BEHIND = re.compile(rf" ?(?P<money>{_MONEY})\Z")
_AGAIN = re.compile(r"(?P<number>[^()]*[0-9%]) ?\((?P<again>[^()]*[0-9][^()]*)\)")
_REPEATED = re.compile(r"[-\u2010-\u2014\u2212$%\s]")
_NOTES = re.compile(
    r"(?<=[0-9)%])(?:\s?(?:\((?:[0-9]{1,2}|[a-z]|[ivx]{1,4})(?:, ?(?:[0-9]{1,2}|[a-z]))*\)|\[[0-9A-Za-z]{1,3}\]"
    r"|[*\u2020\u2021\u00a7\u00b6#]{1,4}|[\u00b9\u00b2\u00b3\u2070\u2074-\u2079]{1,3}))+\Z"
)
"""Footnote marks behind a number: `(1)`, `(a)`, `[1]`, `*`, daggers and superscripts."""
_FORMULA = re.compile(r"""=\s?"(?P<text>[^"]*)"|'(?P<guarded>[-+($]?[0-9.][^']*)""")
"""A text that a spreadsheet program must not convert, as bank exports write it."""

_DASH = re.compile(rf"(?:{_MONEY} ?)?\(?[-\u2014\u2015]{{1,4}}\)? ?(?:%|{_MONEY})?|nil", re.IGNORECASE)
_BLANK = re.compile(r"[.*]{1,4}|n\.?/?a\.?|n/m|nm|none|null|nan|<na>|#n/a", re.IGNORECASE)
SHEET_ERRORS = frozenset({"#DIV/0!", "#N/A", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!"})
_SHORT_SCALE = re.compile(r"[kmbt]|mm|mn|bn|tn", re.IGNORECASE)


_DIGIT = re.compile(r"[0-9]")
_IN_GROUPS = re.compile(r"-?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_ONE_POINT = re.compile(r"-?[0-9]*\.(?:[0-9]{0,2}|[0-9]{4,})")
"""Common forms that need no grammar: tables can have millions of cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A text that was read as a number.

    Attributes:
        value: The number with its scale and percent sign applied.
        marks: Kinds of notation in the text other than digits, a point and a leading minus, as the report names them.
        is_percent: Whether it is written in percent.
        currency: Its currency; empty if there is none.
        unit: Its scale or what it counts, such as `million` and `x`; empty if there is none.
        note: Footnote marks that were removed; `(` for a bracket that is never closed.
        is_doubtful: Whether it is whole, with a short scale and without a currency, as the form type `497K` is.
    """

    value: int | float
    marks: tuple[str, ...] = ()
    is_percent: bool = False
    currency: str = ""
    unit: str = ""
    note: str = ""
    is_doubtful: bool = False


def is_dash(text: str) -> bool:
    """Returns whether a cell is a dash, `nil`, or a dash with a currency or percent sign, such as `$-`."""
    return len(text) <= LONGEST_NUMBER and _DASH.fullmatch(_plain(text).strip()) is not None


def is_blank(text: str) -> bool:
    """Returns whether a cell is a mark for "no value", such as `n/a` or a dash."""
    return len(text) <= LONGEST_NUMBER and (_BLANK.fullmatch(text.strip()) is not None or is_dash(text))


def is_year(text: str) -> bool:
    """Returns whether a text is a year, also as a float, which data frames make of it."""
    plain = text.removesuffix(".0")
    return len(plain) == 4 and plain.isdecimal() and int(plain) in YEARS


@lru_cache(maxsize=2**17)
def read_number(text: str, mark: Mark = ".") -> Reading | None:
    """Returns the number in a text, or None if the text is not a number.

    `$1,234`, `(5)`, `-$6.5`, `12.5%`, `1 234`, `7-`, `1,23,456`, `1.2e5`, `CHF 5`, `$88.0m`, `1,234 (1)` and `="5"` are
    numbers. `-4 ( 4 )` is a number too, because FinQA repeats negative numbers and percentages in brackets. `007` is
    not a number but an identifier, and `5)` is no number, because a part is missing. `(5` is read as -5, as tables show
    it whose `)` was in a column of its own, and its note says so.

    Args:
        text: The cell.
        mark: The decimal mark; the other one of point and comma separates thousands.
    """
    if not text or len(text) > LONGEST_NUMBER or not _DIGIT.search(text):
        return None
    if mark == "." or ("." not in text and "," not in text):
        if _SIMPLE.fullmatch(text):
            return _simple(text)
        if _IN_GROUPS.fullmatch(text) and (reading := _simple(text.replace(",", ""))):
            return replace(reading, marks=("thousands separators",))
    elif _ONE_POINT.fullmatch(text):
        return None
    if formula := _FORMULA.fullmatch(text.strip()):
        reading = read_number(formula["text"] or formula["guarded"] or "", mark)
        return reading and replace(reading, marks=(*reading.marks, "numbers written as formulas or guarded texts"))
    if again := _AGAIN.fullmatch(text):
        plain = _REPEATED.sub("", again["number"]), _REPEATED.sub("", again["again"])
        if plain[0] == plain[1] and (reading := read_number(again["number"], mark)):
            return replace(reading, marks=(*reading.marks, "numbers repeated in brackets"))
    written = _plain(text).strip()
    notes = _NOTES.search(written)
    if notes is None:
        return _read(written, text, mark)
    reading = _read(written[: notes.start()].rstrip(), text, mark)
    note = f"{reading.note if reading else ''}{notes[0].strip()}"
    return reading and replace(reading, note=note, marks=(*reading.marks, "footnote marks removed"))


def _plain(text: str) -> str:
    """Returns a text with `$` for every currency sign, `-` for every minus sign and plain blanks."""
    if text.isascii():
        return text.translate(_SPACES)
    text = text.translate(_SIGNS).translate(_SPACES).replace("\u2019", "'")
    return "".join("$" if unicodedata.category(letter) == "Sc" else letter for letter in text)


def _simple(text: str) -> Reading | None:
    digits = text.removeprefix("-")
    if IDENTIFIER.fullmatch(digits):
        return None
    if digits.isdecimal():
        return Reading(value=int(text)) if len(digits) <= INTEGER_DIGITS else None
    value = float(text)
    return Reading(value=value) if math.isfinite(value) else None


def _read(written: str, text: str, mark: Mark) -> Reading | None:
    match = _CELL.fullmatch(written)
    if match is None:
        return None
    inner = (match["inner"] or "").strip()
    opened = bool(match["open"]) + (inner == "(")
    signs = [sign for sign in ((match["sign"] or "").strip(), inner.strip("("), match["trailing"] or "") if sign]
    unit, behind = _behind(match)
    money = [each.strip() for each in (match["money"], match["money2"], behind) if each]
    is_open = bool(opened) and not match["close"] and not unit
    if (opened != bool(match["close"]) and not is_open) or opened + len(signs) > 1 or len(money) > 1:
        return None
    if unit.startswith("-"):
        return None
    digits = match["digits"].translate({ord("."): ",", ord(","): "."}) if mark == "," else match["digits"]
    if not _is_canonical(digits):
        return None
    canonical = f"{digits}{match['exponent'] or ''} {unit}".strip().lower()
    amounts = find_amounts(canonical)
    if len(amounts) != 1 or (amounts[0].start, amounts[0].end) != (0, len(canonical)):
        return None
    amount, number = amounts[0].amount, amounts[0].amount.number
    value: int | float = float(number.value)
    is_scaled = number.unit.kind is Kind.SCALE
    if (number.is_whole and number.unit is NO_UNIT) or (is_scaled and number.value.denominator == 1):
        value = int(number.value)
        if abs(value) >= 10**INTEGER_DIGITS:
            return None
    negative = bool(opened) or (bool(signs) and signs[0] != "+")
    currency = _currency(text) if money or amount.currency else ""
    percent = number.unit.kind in (Kind.PERCENT, Kind.POINTS)
    kinds = {
        "negative numbers in brackets": bool(opened) and not is_open,
        "negative numbers whose bracket is never closed": is_open,
        "other minus signs": bool(match["trailing"]) or (signs == ["-"] and "-" not in text),
        "thousands separators": any(sign in digits for sign in ", '"),
        "decimal commas": mark == "," and "." in digits,
        "currency signs": bool(currency),
        "percentages": percent,
        "numbers with a scale in the cell, multiplied out": is_scaled,
        "units in the cells, removed": bool(amount.counted),
    }
    return Reading(
        value=-value if negative else value,
        marks=tuple(kind for kind, there in kinds.items() if there),
        is_percent=percent,
        currency=currency,
        unit=unit if is_scaled or amount.counted else "",
        note="(" if is_open else "",
        is_doubtful=bool(_SHORT_SCALE.fullmatch(unit)) and not currency and "." not in digits,
    )


def _behind(match: re.Match[str]) -> tuple[str, str]:
    """Returns unit and currency behind the digits, inside or outside of a closing bracket."""
    unit = f"{match['unit']} {match['after']}".strip()
    if money := _MONEY_BEHIND.search(unit):
        return unit[: money.start()].strip(), money["money"]
    return unit, ""


def _is_canonical(digits: str) -> bool:
    """Returns whether the point is the decimal mark, once and behind all groups, and all groups are complete."""
    whole, _, rest = digits.partition(".")
    if any(sign in rest for sign in ".,' ") or IDENTIFIER.fullmatch(re.sub("[,' ]", "", digits)):
        return False
    return "," not in whole or re.fullmatch(r"[0-9]{3}", whole.rpartition(",")[2]) is not None


def _currency(text: str) -> str:
    """Returns the currency of a number: the code if `strict-3` knows it, else its sign or code as written."""
    if len(known := currencies(text.lower())) == 1:
        return next(iter(known))
    signs = [letter for letter in text if unicodedata.category(letter) == "Sc"]
    words = re.findall(r"[A-Za-z]{2,}", text)
    code = next((word.upper() for word in words if word.upper() in _CODES.split() or word == "Rs"), "")
    prefix = re.search(r"([A-Z]{1,3})\s?\$", text)
    return code or (f"{prefix[1]}$" if prefix else signs[0] if signs else "other")


def proven_marks(texts: Iterable[str]) -> set[Mark]:
    """Returns the decimal marks that some texts prove, because they are numbers with one of the two marks only.

    `1.234.567`, `1.234,5` and `12,5` prove the comma, and `1,234,567`, `12.5` and `0.125` the point. `1.234` and
    `1,234` prove nothing. Footnote marks, units and currencies do not matter.
    """
    found: set[Mark] = set()
    for text in texts:
        if "." in text or "," in text:
            point, comma = read_number(text, "."), read_number(text, ",")
            if (point is None) != (comma is None):
                found.add("." if comma is None else ",")
    return found
