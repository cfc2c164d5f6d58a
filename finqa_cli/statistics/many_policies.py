"""Several policies on the same questions: every pair compared, with the chance of a false finding held for all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from finqa_cli.statistics.intervals import NO_SPREAD
from finqa_cli.statistics.outcomes import Outcome, by_question, share_right
from finqa_cli.statistics.paired import PairedDifference, holm, paired_difference

Verdict = Literal["shown", "not shown", "tests disagree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What one policy, or one training method over several seeds, scored.

    Attributes:
        label: Its name in the report.
        shares: Question -> share of its attempts that were right; with several seeds the mean over the seeds.
        companies: Question -> company.
    """

    label: str
    shares: Mapping[str, float]
    companies: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One pair.

    Attributes:
        first: Label.
        second: Label.
        paired: First minus second.
        adjusted: Holm's p-value of the clustered t-test among all pairs.
        adjusted_mcnemar: The same of the exact McNemar test.
        verdict: `shown` when both adjusted p-values are below 1 - level, `tests disagree` when one is.
        gained: Questions on which the first scored higher.
        lost: Questions on which it scored lower.
    """

    first: str
    second: str
    paired: PairedDifference
    adjusted: float
    adjusted_mcnemar: float
    verdict: Verdict
    gained: Sequence[str]
    lost: Sequence[str]


def scores_of(label: str, runs: Sequence[Sequence[Outcome]]) -> Scores:
    """The scores over the questions that every run has a graded attempt at, each run counting the same."""
    found = [by_question(run) for run in runs]
    questions = sorted(set.intersection(*(set(run) for run in found)))
    shares = {name: math.fsum(share_right(run[name]) for run in found) / len(found) for name in questions}
    return Scores(label=label, shares=shares, companies={name: found[0][name][0].company for name in questions})


def common_questions(first: Scores, second: Scores) -> list[str]:
    """The questions that both scored, in order of their ids."""
    return sorted(first.shares.keys() & second.shares.keys())


def compare_all(scores: Sequence[Scores], *, baseline: str = "", level: float = 0.95) -> list[Comparison]:
    """Every pair, later less earlier, or everyone less the baseline; p-values of both tests adjusted by Holm.

    Fewer pairs adjust less, so name a baseline beforehand when only differences from it are of interest.

    Raises:
        ValueError: A pair has no question in common.
    """
    pairs = [
        (first, second) if baseline == second.label else (second, first)
        for first, second in itertools.combinations(scores, 2)
        if not baseline or baseline in (first.label, second.label)
    ]
    results = [_paired(first, second, level) for first, second in pairs]
    keys = [str(number) for number in range(len(pairs))]
    adjusted = holm(dict(zip(keys, (result.p_value for result in results), strict=True)))
    mcnemar = holm(dict(zip(keys, (result.mcnemar for result in results), strict=True)))
    return [
        Comparison(
            first=first.label,
            second=second.label,
            paired=result,
            adjusted=adjusted[key],
            adjusted_mcnemar=mcnemar[key],
            verdict=_verdict(adjusted[key], mcnemar[key], 1 - level),
            gained=_higher(first, second),
            lost=_higher(second, first),
        )
        for key, (first, second), result in zip(keys, pairs, results, strict=True)
    ]


def _paired(first: Scores, second: Scores, level: float) -> PairedDifference:
    questions = common_questions(first, second)
    companies = [first.companies[name] for name in questions]
    return paired_difference(
        [first.shares[name] for name in questions],
        [second.shares[name] for name in questions],
        companies,
        level=level,
    )


def _higher(one: Scores, other: Scores) -> list[str]:
    return [name for name in common_questions(one, other) if one.shares[name] - other.shares[name] > NO_SPREAD]


def _verdict(adjusted: float, adjusted_mcnemar: float, alpha: float) -> Verdict:
    below = (adjusted < alpha, adjusted_mcnemar < alpha)
    return "shown" if all(below) else "tests disagree" if any(below) else "not shown"
