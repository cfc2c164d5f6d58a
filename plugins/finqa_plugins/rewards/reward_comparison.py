"""Compares an answer with the truth, which is FinQA's `exe_ans` or an answer as a data set writes it.

Both are read as the newest grading profile `strict` reads them, with the question; or, for runs from before, as
`strict-1` does: one number and nothing else (`$1,234.50`, `(32)`, `12.5%`, `9.4 million`), a text such as yes and no,
or a list of them. If a text has LaTeX's boxed answers, only these count, with the sign and the unit next to them. Words
may follow the number of a truth (`45 stores`), but not that of an answer, which could hedge in them.

Units are applied as written, with one exception: if only one side has a percent sign or points, or only the truth has a
scale, the unit of the bare number is not known. Then both readings are compared and the better one counts, because
`exe_ans` writes 12.5 % as 0.125 in some rows and as 12.5 in others. An answer without a percent sign is never 100 times
a truth without one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from finqa_cli.grading import STRICT, STRICT_BEFORE_VERSIONS, Profile
from finqa_cli.grading.items import answer_items, bare_text, boxed_parts, pair_up, truth_items
from finqa_cli.grading.numbers import Kind, Number
from finqa_cli.grading.strict_3.value_verdict import pair_values
from finqa_cli.grading.strict_3.wrapping import UnreadableError
from finqa_cli.grading.verdict import MAX_ANSWER_BYTES
from finqa_plugins.rewards.spec import Tolerances

DECIMALS = 5
"""Decimals to which FinQA's evaluation script rounds results before it compares them (arXiv 2109.00122)."""

AROUND_ZERO = Fraction(1, 1000)
"""Answers with a smaller absolute value are close to a truth of 0, for which there is no relative error."""

Pairs = Sequence[tuple[Number | str, Number | str]]
"""Values of an answer with those of the truth; empty if they cannot be paired."""

_SHARES = (Kind.PERCENT, Kind.POINTS)


@dataclass(frozen=True, slots=True)
class Match:
    """The result of a comparison.

    Attributes:
        exact: Whether the texts are equal, or the numbers to 5 decimals; for lists, whether all values are.
        relative: |answer - truth| / |truth|, 0 for equal texts and for answers close to a truth of 0; for lists the
            largest. None if they cannot be compared, or the error is above 1.
        in_percent: Whether the truth has a percent sign, or words for it.
    """

    exact: bool = False
    relative: float | None = None
    in_percent: bool = False

    def tolerance(self, tolerances: Tolerances) -> float:
        """The tolerance that applies: `percentage` or `numerical`."""
        return tolerances.percentage if self.in_percent else tolerances.numerical

    def within(self, tolerances: Tolerances) -> bool:
        """Whether the answer is exact or close."""
        return self.exact or (self.relative is not None and self.relative <= self.tolerance(tolerances))


def compare(answer: str, truth: str, question: str = "", *, profile: Profile = STRICT) -> Match:
    """Compares two texts. Nothing matches an empty truth. Linear time; never raises.

    Args:
        answer: The answer.
        truth: The truth.
        question: The question alone, see `grade`.
        profile: Grading profile by which both are read: `strict-1` or the newest.
    """
    if any(len(text.encode("utf-8", "replace")) > MAX_ANSWER_BYTES for text in (answer, truth)):
        return Match()
    given, expected = bare_text(answer), bare_text(truth)
    if not given or not expected:
        return Match()
    pairs = _paired(answer, truth) if profile == STRICT_BEFORE_VERSIONS else _read(answer, truth, question)
    match = _compare_values(pairs)
    return (
        Match(exact=True, relative=0.0) if not match.exact and given == expected and not boxed_parts(given) else match
    )


def is_prose(truth: str) -> bool:
    """Whether the truth has more than numbers, yes and no, so that answers in other words cannot be judged."""
    return any(isinstance(item.value, str) and item.value not in ("yes", "no") for item in truth_items(truth))


def _read(answer: str, truth: str, question: str) -> Pairs:
    try:
        return pair_values(answer, truth, question)
    except UnreadableError:
        return []


def _paired(answer: str, truth: str) -> Pairs:
    submitted = answer_items(answer)
    pairs = submitted if isinstance(submitted, str) else pair_up(submitted, truth_items(truth))
    return [] if isinstance(pairs, str) else [(given.value, wanted.value) for given, wanted in pairs]


def _compare_values(pairs: Pairs) -> Match:
    """Compares each value with its partner in the truth; nothing matches if there are none."""
    if not pairs:
        return Match()
    matches = [_compare_pair(given, wanted) for given, wanted in pairs]
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
    """Yield the pairs of numbers to compare, one for each reading of the units."""
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
