"""How far an answer is from the truth. The truth is FinQA's `exe_ans`, or an answer as a data set writes it.

Both are read as the grading profile `strict` reads them: one number and nothing else (`$1,234.50`, `(32)`, `12.5%`,
`9.4 million`), a text such as yes and no, or a list of them; where a text has LaTeX's boxed answers, only these count,
with the sign and the unit beside them. Words may follow the number of a truth (`45 stores`), but not that of an answer,
which could hedge in them.

A unit is taken at its word, with one exception: where only one side carries a percent sign or points, or only the truth
a scale, the unit of the bare number is not known. It is then compared in both readings and the better one counts, since
`exe_ans` writes 12.5 % as 0.125 in some rows and as 12.5 in others. An answer without a sign is never 100 times a truth
without one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from finqa_cli.grading.items import Item, answer_items, bare_text, boxed_parts, pair_up, truth_items
from finqa_cli.grading.numbers import Kind, Number
from finqa_cli.grading.verdict import MAX_ANSWER_BYTES
from finqa_plugins.rewards.spec import Tolerances

DECIMALS = 5
"""FinQA rounds the result of a program to so many before it compares (arXiv 2109.00122, its evaluation script)."""

AROUND_ZERO = Fraction(1, 1000)
"""What is nearer to a truth of 0 is close to it; there is no relative error."""

_SHARES = (Kind.PERCENT, Kind.POINTS)


@dataclass(frozen=True, slots=True)
class Match:
    """What a comparison found.

    Attributes:
        exact: The same text, or the same number to 5 decimals; of a list, every value is.
        relative: |answer - truth| / |truth|, 0 for the same text and for what is close to a truth of 0; of a list, the
            largest. None when they cannot be compared, or the error is above 1.
        in_percent: The truth carries a percent sign, or its words.
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


def compare(answer: str, truth: str) -> Match:
    """Compares two texts. Nothing matches an empty truth. Linear time; never raises."""
    if any(len(text.encode("utf-8", "replace")) > MAX_ANSWER_BYTES for text in (answer, truth)):
        return Match()
    given, expected = bare_text(answer), bare_text(truth)
    if not given or not expected:
        return Match()
    match = _compare_values(answer_items(answer), truth_items(truth))
    return (
        Match(exact=True, relative=0.0) if not match.exact and given == expected and not boxed_parts(given) else match
    )


def is_prose(truth: str) -> bool:
    """It contains more than numbers, yes and no, so that no comparison can judge an answer in other words."""
    return any(isinstance(item.value, str) and item.value not in ("yes", "no") for item in truth_items(truth))


def _compare_values(submitted: Sequence[Item] | str, expected: Sequence[Item]) -> Match:
    """Each value with its own of the truth; nothing matches when they cannot be paired."""
    pairs = submitted if isinstance(submitted, str) else pair_up(submitted, expected)
    if isinstance(pairs, str):
        return Match()
    matches = [_compare_pair(given.value, wanted.value) for given, wanted in pairs]
    errors = [match.relative for match in matches if match.relative is not None]
    return Match(
        exact=all(match.exact for match in matches),
        relative=max(errors) if len(errors) == len(matches) else None,
        in_percent=any(match.in_percent for match in matches),
    )


def _compare_pair(given: Number | str, expected: Number | str) -> Match:
    if isinstance(given, str) or isinstance(expected, str):
        same = given == expected != ""
        return Match(exact=same, relative=0.0 if same else None)
    pairs = list(_readings(given, expected))
    errors = [error for pair in pairs if (error := _relative(*pair)) is not None]
    return Match(
        exact=any(value == right or round(value, DECIMALS) == right for value, right in pairs),
        relative=min(errors, default=None),
        in_percent=expected.unit.kind in _SHARES,
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
