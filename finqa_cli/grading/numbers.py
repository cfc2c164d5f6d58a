"""Written numbers, exactly: fractions instead of floats, and how precisely each was written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from finqa_cli.grading.units import Kind, Unit, leading_unit

LONGEST_NUMBER = 100
"""Characters. Python takes quadratic time for long integers, and no honest number is that long."""

_PREFIX = re.compile(r"\A(?:usd?|us dollars?) ")
_SIGN = re.compile(r"[-+]? ?")
_FRACTION = re.compile(r"([0-9]{1,20}) ?/ ?([0-9]{1,20})(?![0-9.,/])")
_DECIMAL = re.compile(r"((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)(?:e([-+]?[0-9]{1,2}))?")


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written.

    Attributes:
        mantissa: The number before its unit.
        unit: What it counts.
        is_whole: Written without point, exponent or fraction bar.
        digits: Significant digits that were written; those of a whole number end before its trailing zeros, unless
            a scale follows it. 0 for a fraction, which nobody writes to round.
        place: What one in the last of these digits is worth, before the unit.
    """

    mantissa: Fraction
    unit: Unit
    is_whole: bool
    digits: int
    place: Fraction

    @property
    def value(self) -> Fraction:
        """The number that it denotes."""
        return self.mantissa * self.unit.factor

    @property
    def is_exact(self) -> bool:
        """Counts and amounts of whole dollars are known exactly; shares, rates and averages are measured."""
        return self.is_whole and self.unit.kind in (Kind.PLAIN, Kind.SCALE)


def parse_number(text: str, *, any_noun: bool = False) -> Number | None:
    """One number and nothing else, or None.

    A sign stands once. Brackets mean a negative number, and then no sign stands beside them. `1e-05` is a number,
    because that is how programs print small ones; `1_000`, `0x10`, `nan`, `inf` and digits of other scripts are none.

    Args:
        text: Lower case, blanks collapsed.
        any_noun: Words without digits may follow, as in `45 stores`.
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
    return _decimal(match[1].replace(",", ""), int(match[2] or 0), match[2] is None, sign, unit)


def _is_noun(text: str) -> bool:
    return text.startswith((" ", "(")) and not any(character.isnumeric() for character in text)


def _decimal(written: str, exponent: int, is_plain: bool, sign: Fraction, unit: Unit) -> Number:
    before, _, after = written.partition(".")
    is_whole = is_plain and not after
    significant = (before + after).lstrip("0")
    dropped = 0
    if not after and unit.kind is not Kind.SCALE:
        dropped = len(significant) - len(significant.rstrip("0"))
    power = Fraction(10) ** (exponent - len(after))
    mantissa = sign * int(before + after) * power
    return Number(mantissa, unit, is_whole, len(significant) - dropped, power * 10**dropped)
