"""Reads written numbers with their units exactly, as fractions instead of floats, with their precision."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

LONGEST_NUMBER = 100
"""Largest number of characters. Python takes quadratic time for long integers, and no honest number is that long."""

_PREFIX = re.compile(r"\A(?:usd?|us dollars?) ")
_SIGN = re.compile(r"[-+]? ?")
_FRACTION = re.compile(r"([0-9]{1,20}) ?/ ?([0-9]{1,20})(?![0-9.,/])")
_DECIMAL = re.compile(r"((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)(?:e([-+]?[0-9]{1,2}))?")


class Kind(Enum):
    """Effect of a unit on the number before it."""

    PLAIN = "plain"
    PERCENT = "percent"
    """A percent sign divides by 100, always: 4.5% is 0.045."""
    SCALE = "scale"
    """A scale multiplies, always: 77 million is 77,000,000."""
    POINTS = "points"
    """Points count fractions: percentage points are hundredths, basis points ten-thousandths."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit and its factor."""

    kind: Kind
    factor: Fraction


NO_UNIT = Unit(Kind.PLAIN, Fraction(1))

_UNITS: dict[str, Unit] = {}
for _unit, _words in (
    (NO_UNIT, "x|times|usd|us dollars|dollars|dollar|per share|a share|shares|share|years|year|months|days"),
    (Unit(Kind.PERCENT, Fraction(1, 100)), "%|percent|per cent|pct"),
    (Unit(Kind.POINTS, Fraction(1, 100)), "percentage points|percentage point|percent points|percent point"),
    (Unit(Kind.POINTS, Fraction(1, 100)), "pct points|% points|%-points|ppts|ppt|pps|pp|p.p"),
    (Unit(Kind.POINTS, Fraction(1, 10_000)), "basis points|basis point|bps|bp"),
    (Unit(Kind.SCALE, Fraction(10**3)), "thousands|thousand|k"),
    (Unit(Kind.SCALE, Fraction(10**6)), "millions|million|mil|mn|mm|m"),
    (Unit(Kind.SCALE, Fraction(10**9)), "billions|billion|bn|b"),
    (Unit(Kind.SCALE, Fraction(10**12)), "trillions|trillion|tn|t"),
):
    _UNITS.update(dict.fromkeys(_words.split("|"), _unit))

_ANY_UNIT = "|".join(map(re.escape, sorted(_UNITS, key=len, reverse=True)))
_NEXT_UNIT = re.compile(
    rf" ?(?:\((?:in )?({_ANY_UNIT})(?: of dollars)?\)|(?:in )?({_ANY_UNIT})(?: of dollars)?(?![a-z0-9])) ?"
)
_MOST_UNITS = 4


def leading_unit(text: str) -> tuple[Unit, str] | None:
    """Returns the unit that a text begins with, such as `(in millions)`, and the rest; None if two units contradict.

    The unit is `NO_UNIT` if the text begins with none.

    Args:
        text: Lower case, blanks collapsed.
    """
    unit, rest = NO_UNIT, text
    for _ in range(_MOST_UNITS):
        match = _NEXT_UNIT.match(rest)
        if match is None:
            break
        found = _UNITS[match[1] or match[2]]
        if found is not NO_UNIT and unit is not NO_UNIT:
            return None
        unit = unit if found is NO_UNIT else found
        rest = rest[match.end() :]
    return unit, rest


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written.

    Attributes:
        mantissa: The number before its unit.
        unit: The unit after it.
        is_whole: Whether it was written without decimals, exponent or fraction bar.
        digits: Number of significant digits as written, without trailing zeros of a whole number unless a scale follows
            it. 0 for a fraction, which is not rounded.
        place: Value of 1 in the last of these digits, before the unit; 0 for a fraction.
    """

    mantissa: Fraction
    unit: Unit
    is_whole: bool
    digits: int
    place: Fraction

    @property
    def value(self) -> Fraction:
        """The number with its unit."""
        return self.mantissa * self.unit.factor

    @property
    def is_exact(self) -> bool:
        """Whether the number is exact, as counts and whole amounts are; shares, rates and averages are measured."""
        return self.is_whole and self.unit.kind in (Kind.PLAIN, Kind.SCALE)


def parse_number(text: str, *, any_noun: bool = False) -> Number | None:
    """Returns the number if the text is one number and nothing else, else None.

    At most one sign is allowed. Brackets mean a negative number and exclude a sign. `1e-05` is a number, because
    programs print small numbers so; `1_000`, `0x10`, `nan`, `inf` and digits of other scripts are not numbers.

    Args:
        text: Lower case, blanks collapsed.
        any_noun: Whether words without digits may follow, as in `45 stores`.
    """
    text = _PREFIX.sub("", text.strip())
    if len(text) > LONGEST_NUMBER:
        return None
    if text.startswith("("):
        inner, closed, outer = text[1:].partition(")")
        return _unsigned(f"{inner.strip()} {outer.strip()}", Fraction(-1), any_noun) if closed else None
    sign = _SIGN.match(text)
    start = sign.end() if sign else 0
    return _unsigned(text[start:], Fraction(-1 if text.startswith("-") else 1), any_noun)


def _unsigned(text: str, sign: Fraction, any_noun: bool) -> Number | None:
    text = text.strip()
    match = _FRACTION.match(text) or _DECIMAL.match(text)
    if match is None:
        return None
    found = leading_unit(text[match.end() :])
    if found is None:
        return None
    unit, rest = found
    if rest.strip(" .") and not (any_noun and _is_noun(rest)):
        return None
    if match.re is _FRACTION:
        denominator = int(match[2])
        mantissa = Fraction(int(match[1]), denominator) if denominator else None
        return None if mantissa is None else Number(sign * mantissa, unit, False, 0, Fraction(0))
    return decimal_number(match[1].replace(",", ""), int(match[2] or 0), match[2] is None, sign, unit)


def _is_noun(text: str) -> bool:
    return text.startswith((" ", "(")) and not any(character.isnumeric() for character in text)


def decimal_number(written: str, exponent: int, is_plain: bool, sign: Fraction, unit: Unit) -> Number:
    """Returns the number that is written with these digits.

    Args:
        written: Digits and at most one point.
        exponent: Power of ten that the digits are multiplied by.
        is_plain: Whether it was written without an exponent.
        sign: 1 or -1.
        unit: The unit after it.
    """
    before, _, after = written.partition(".")
    is_whole = is_plain and not after
    significant = (before + after).lstrip("0")
    dropped = 0
    if not after and unit.kind is not Kind.SCALE:
        dropped = len(significant) - len(significant.rstrip("0"))
    power = Fraction(10) ** (exponent - len(after))
    mantissa = sign * int(before + after) * power
    return Number(mantissa, unit, is_whole, len(significant) - dropped, power * 10**dropped)
