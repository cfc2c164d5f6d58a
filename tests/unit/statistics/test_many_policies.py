"""Several policies on the same questions: who is subtracted from whom, what each level shows, what counts as asked."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from fixtures.eval_outcomes import outcome

from finqa_cli.statistics import Outcome, Scores, compare_all, holm, scores_of

QUESTIONS = [f"q{number:02d}" for number in range(12)]


def scores(label: str, right: Sequence[int]) -> Scores:
    """Right on these questions, each about a company of its own."""
    shares = {name: float(number in right) for number, name in enumerate(QUESTIONS)}
    return Scores(label=label, shares=shares, companies={name: name for name in QUESTIONS})


def attempt(question: str, member: int, correct: bool | None) -> Outcome:
    return outcome(question, f"company of {question}", member, correct)


BETTER, WORSE, OTHER = scores("better", range(6)), scores("worse", [0]), scores("other", [9])


@pytest.mark.parametrize("order", list(itertools.permutations([BETTER, WORSE, OTHER])))
def test_the_baseline_is_subtracted_wherever_it_stands(order: Sequence[Scores]) -> None:
    found = compare_all(order, baseline="worse")
    assert {one.first for one in found} == {"better", "other"} and {one.second for one in found} == {"worse"}
    gain = next(one for one in found if one.first == "better")
    assert gain.paired.difference == pytest.approx(5 / 12)
    assert (gain.gained, gain.lost) == (QUESTIONS[1:6], [])
    swap = next(one for one in found if one.first == "other")
    assert (swap.paired.difference, swap.gained, swap.lost) == (0.0, ["q09"], ["q00"])


def test_without_a_baseline_later_less_earlier_and_holm_over_all_pairs() -> None:
    found = compare_all([WORSE, BETTER, OTHER])
    assert [(one.first, one.second) for one in found] == [("better", "worse"), ("other", "worse"), ("other", "better")]
    for raw, adjusted in (("p_value", "adjusted"), ("mcnemar", "adjusted_mcnemar")):
        expected = holm({str(place): getattr(one.paired, raw) for place, one in enumerate(found)})
        assert [getattr(one, adjusted) for one in found] == list(expected.values())


def test_a_difference_is_shown_when_both_tests_agree_at_the_level_that_was_asked_for() -> None:
    # Six of twelve changed, all for the better: t = 3.317 with 11 degrees has p = 0.0069, McNemar 2 / 2^6 = 0.031.
    verdicts = {
        level: compare_all([scores("none", []), BETTER], level=level)[0].verdict for level in (0.95, 0.99, 0.995)
    }
    assert verdicts == {0.95: "shown", 0.99: "tests disagree", 0.995: "not shown"}


def test_scores_are_means_over_seeds_on_the_questions_that_every_seed_was_graded_on() -> None:
    first = [attempt("a", 0, True), attempt("a", 1, False), attempt("a", 2, None), attempt("b", 0, True)]
    second = [attempt("a", 0, True), attempt("b", 0, None), attempt("c", 0, True)]
    found = scores_of("method", [first, second])
    assert found.shares == {"a": pytest.approx((1 / 2 + 1) / 2)}, "a fault is in no mean, and b has nothing else"
    assert found.companies == {"a": "company of a"}
