"""How far an answer is from the truth. The truth is FinQA's `exe_ans`, or an answer as a data set writes it.

What is read is one number and nothing else (`$1,234.50`, `(32)`, `12.5%`, `9.4 million`, `45 stores`), or a text such
as yes and no. A unit is taken at its word, with one exception: where only one side carries a percent sign, or only the
truth a scale, the unit of the bare number is not known. It is then compared in both readings and the better one counts,
since `exe_ans` writes 12.5 % as 0.125 in some rows and as 12.5 in others. An answer without a sign is never 100 times
a truth without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from finqa_cli.grading.latex import boxes, plain
from finqa_cli.grading.numbers import Number, parse_number
from finqa_cli.grading.units import Kind
from finqa_cli.grading.verdict import MAX_ANSWER_BYTES
from finqa_plugins.rewards.spec import Tolerances

DECIMALS = 5
"""FinQA rounds the result of a program to so many before it compares (arXiv 2109.00122, its evaluation script)."""

AROUND_ZERO = Fraction(1, 1000)
"""What is nearer to a truth of 0 is close to it; there is no relative error."""

_DROPPED = str.maketrans("", "", ", $%")
_SHARES = (Kind.PERCENT, Kind.POINTS)


@dataclass(frozen=True, slots=True)
class Value:
    """An answer or a truth as read.

    Attributes:
        number: None when it is no number.
        text: Lower case, without `, $ %`, blanks and a full stop at the end; empty when there is nothing to compare.
    """

    number: Number | None
    text: str

    @property
    def is_share(self) -> bool:
        """It carries a percent sign, or its words."""
        return self.number is not None and self.number.unit.kind in _SHARES


@dataclass(frozen=True, slots=True)
class Match:
    """What a comparison found.

    Attributes:
        exact: The same text, or the same number to 5 decimals.
        relative: |answer - truth| / |truth|, 0 for what is close to a truth of 0; None when one side is no number, or
            the error is above 1.
        in_percent: The truth carries a percent sign.
    """

    exact: bool = False
    relative: float | None = None
    in_percent: bool = False

    def tolerance(self, tolerances: Tolerances) -> float:
        """The one that applies."""
        return tolerances.percentage if self.in_percent else tolerances.numerical

    def within(self, tolerances: Tolerances) -> bool:
        """Close, or exact."""
        return self.exact or (self.relative is not None and self.relative <= self.tolerance(tolerances))


def read_value(text: str) -> Value:
    r"""Reads an answer or a truth, out of its `\boxed{}` if there is one box. Linear time; never raises."""
    if len(text.encode("utf-8", "replace")) > MAX_ANSWER_BYTES:
        return Value(None, "")
    found = boxes(text)
    content = plain(found[0].content if len(found) == 1 else text)
    return Value(parse_number(content, any_noun=True), content.translate(_DROPPED).rstrip("."))


def compare(answer: str, truth: str) -> Match:
    """Compares two texts. Nothing matches an empty truth."""
    given, expected = read_value(answer), read_value(truth)
    if not given.text or not expected.text:
        return Match()
    if given.number is None or expected.number is None:
        return Match(exact=given.text == expected.text)
    pairs = list(_readings(given.number, expected.number))
    errors = [error for pair in pairs if (error := _relative(*pair)) is not None]
    return Match(
        exact=any(value == right or round(value, DECIMALS) == right for value, right in pairs),
        relative=min(errors, default=None),
        in_percent=expected.is_share,
    )


def _readings(given: Number, expected: Number) -> Iterator[tuple[Fraction, Fraction]]:
    """What may be compared with what."""
    units = given.unit.kind, expected.unit.kind
    if given.unit == expected.unit:
        yield given.mantissa, expected.mantissa
        return
    yield given.value, expected.value
    if units[1] is Kind.PLAIN and units[0] in _SHARES:
        yield given.mantissa, expected.value
    elif units[0] is Kind.PLAIN and units[1] is not Kind.PLAIN:
        yield given.mantissa, expected.mantissa


def _relative(value: Fraction, right: Fraction) -> float | None:
    if right == 0:
        return 0.0 if abs(value) < AROUND_ZERO else None
    error = abs(value - right) / abs(right)
    return float(error) if error <= 1 else None
