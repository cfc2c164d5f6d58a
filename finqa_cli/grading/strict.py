"""The verdict on a submitted answer, profile `strict`: one answer has one meaning, and it is right or wrong.

What it decides, beside the meaning of written numbers and units (`numbers.py`):

- As many values as the truth has, no more: a list, a range, `5 or 6`, `~5` or a second boxed value has not decided.
- A list with years or names is matched by them, in any order, when the truth has the same ones; each stands once.
- A list without them, or with years against a truth without any, is matched by position. Names that the truth does
  not have are refused: `No: yes` has not decided.
- A number may have a unit, a currency or `The answer is` around it; other prose only around a boxed value.
- Words are compared without case, quotes and full stops. Nothing matches an empty truth, nor one such as NaN.

How far a number may be from the truth:

- Never more than 1 % of it, as in OpenEnv.
- A measured truth (with a decimal point, a percent sign or a fraction bar) also allows at most 1 in its own unit, as in
  OpenEnv: 1 % of a large average would take the average of other years.
- An exact truth (a whole number: a count, a year, an amount from a table) must be hit, since 2024 is within 1 % of
  2023 and so is many a neighbouring cell. Either side may be the other one rounded, though: 136.4 is right for 136, and
  9.51 billion for 9,513,482,000.
- Rounding must keep four significant digits, or three before a scale word, which shows that it was meant.
- A truth of 0 takes anything nearer than 0.001, as in OpenEnv.
"""

from __future__ import annotations

from fractions import Fraction

from finqa_cli.grading.items import Item, answer_items, bare_text, pair_up, truth_items
from finqa_cli.grading.numbers import Kind, Number
from finqa_cli.grading.verdict import Verdict, shown

RELATIVE = Fraction(1, 100)
MEASURED = Fraction(1)
"""In the truth's own unit."""
AROUND_ZERO = Fraction(1, 1000)
ROUNDED_DIGITS = 4
ROUNDED_DIGITS_BEFORE_A_SCALE = 3


def grade(answer: str, truth: str) -> Verdict:
    """Compares an answer with the truth. Never raises."""
    if not (text := bare_text(answer)):
        return Verdict(0.0, "The answer is empty, or not a number.")
    if text == bare_text(truth) and "\\boxed" not in text:
        return Verdict(1.0, f"{shown(answer)} matches.")
    submitted, expected = answer_items(answer), truth_items(truth)
    if isinstance(submitted, str):
        return Verdict(0.0, submitted)
    pairs = pair_up(submitted, expected)
    if isinstance(pairs, str):
        return Verdict(0.0, pairs)
    if len(pairs) == 1:
        return _single(answer, *pairs[0])
    wrong = [place for place, (given, wanted) in enumerate(pairs, start=1) if not _equal(given, wanted)]
    if wrong:
        return Verdict(0.0, f"{len(wrong)} of {len(pairs)} values do not match, first the one at place {wrong[0]}.")
    return Verdict(1.0, f"All {len(pairs)} values match.")


def _single(answer: str, given: Item, expected: Item) -> Verdict:
    if _equal(given, expected):
        return Verdict(1.0, f"{shown(answer)} matches.")
    if isinstance(expected.value, str):
        return Verdict(0.0, f"{shown(answer)} is not the expected text.")
    if isinstance(given.value, str):
        return Verdict(0.0, f"{shown(answer)} is not one number.")
    return Verdict(0.0, f"{shown(answer)} is outside the tolerance, or in another unit.")


def _equal(given: Item, expected: Item) -> bool:
    if isinstance(given.value, Number) and isinstance(expected.value, Number):
        return _is_close(given.value, expected.value)
    return given.value == expected.value != ""


def _is_close(answer: Number, truth: Number) -> bool:
    """The answer, in one of the units it may be in, is near enough to the truth."""
    return any(_is_within(answer, factor, truth) for factor in _units(answer, truth))


def _units(answer: Number, truth: Number) -> tuple[Fraction, ...]:
    """What one of the answer's unit may be worth.

    A unit that is written is taken at its word: 4.5% is 0.045 and never 4.5, and -77 million is never -77. A bare
    number may be in a scale or in points that the truth names, because the prompt asks for the number alone; beside a
    percent sign it is the ratio, as the prompt asks for that too. Points against a truth without a unit are counted:
    such a truth was asked for in points.
    """
    if answer.unit.kind is Kind.POINTS and truth.unit.kind is Kind.PLAIN:
        return (Fraction(1),)
    if answer.unit.kind is Kind.PLAIN and truth.unit.kind in (Kind.SCALE, Kind.POINTS):
        return (answer.unit.factor, truth.unit.factor)
    return (answer.unit.factor,)


def _is_within(answer: Number, factor: Fraction, truth: Number) -> bool:
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
