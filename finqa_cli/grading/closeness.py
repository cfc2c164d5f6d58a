"""How far a number may be from the truth under the profiles `strict-1` and `strict-3`.

- Never more than 1 % of it, as in OpenEnv.
- A measured truth (with a decimal point, a percent sign or a fraction bar) also allows at most 1 in its own unit, as in
  OpenEnv: 1 % of a large average would take the average of other years.
- An exact truth (a whole number: a count, a year, an amount from a table) must be matched exactly, because 2024 is
  within 1 % of 2023, and so are many neighbouring cells. But either side may be the other one rounded: 136.4 is right
  for 136, and 9.51 billion for 9,513,482,000.
- Rounding must keep four significant digits, or three before a scale word, which shows that the rounding is intended.
- For a truth of 0, anything nearer than 0.001 is right, as in OpenEnv.
"""

from __future__ import annotations

from fractions import Fraction

from finqa_cli.grading.items import Item
from finqa_cli.grading.numbers import Kind, Number

RELATIVE = Fraction(1, 100)
MEASURED = Fraction(1)
"""Largest difference from a measured truth, in the truth's own unit."""
AROUND_ZERO = Fraction(1, 1000)
ROUNDED_DIGITS = 4
ROUNDED_DIGITS_BEFORE_A_SCALE = 3


def unit_readings(answer: Number, truth: Number) -> tuple[Fraction, ...]:
    """Returns the factors by which the number of the answer may be multiplied, given both units.

    A written unit is read literally: 4.5% is 0.045 and never 4.5, and -77 million is never -77. A bare number may also
    be in the scale or points of the truth, because the prompt asks for the number alone. If the truth has a percent
    sign, a bare number is the ratio, which the prompt asks for, too. An answer in points has the factor 1 against a
    truth without a unit, because the question then asks for points.
    """
    if answer.unit.kind is Kind.POINTS and truth.unit.kind is Kind.PLAIN:
        return (Fraction(1),)
    if answer.unit.kind is Kind.PLAIN and truth.unit.kind in (Kind.SCALE, Kind.POINTS):
        return (answer.unit.factor, truth.unit.factor)
    return (answer.unit.factor,)


def is_within(answer: Number, factor: Fraction, truth: Number) -> bool:
    """Returns whether the answer, with `factor` for its unit, is near enough to the truth."""
    given, expected = answer.mantissa * factor, truth.value
    if expected == 0:
        return abs(given) < AROUND_ZERO
    difference = abs(given - expected)
    if difference > RELATIVE * abs(expected):
        return False
    allowed = truth.unit.factor * (Fraction(1, 2) if truth.is_exact else MEASURED)
    needed = ROUNDED_DIGITS_BEFORE_A_SCALE if answer.unit.kind is Kind.SCALE else ROUNDED_DIGITS
    rounding = answer.place * factor / 2 if answer.digits >= needed else Fraction(0)
    return difference <= max(allowed, rounding)


def same_item(given: Item, expected: Item) -> bool:
    """Returns whether two numbers are near enough, or two texts are equal and not empty."""
    if isinstance(given.value, Number) and isinstance(expected.value, Number):
        answer, truth = given.value, expected.value
        return any(is_within(answer, factor, truth) for factor in unit_readings(answer, truth))
    return given.value == expected.value != ""
