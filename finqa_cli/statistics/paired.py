"""Policies and methods on the same questions: paired differences, two tests of each, and Holm's correction."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from finqa_cli.statistics.crossed import crossed_error, mean_scores, run_spread
from finqa_cli.statistics.intervals import NO_SPREAD, clustered_mean, t_test
from finqa_cli.statistics.outcomes import Outcome, by_question, share_right

Verdict = Literal["shown", "not shown", "tests disagree"]

About = Literal["methods", "method and policy", "policies"]
"""What a comparison speaks of: a side with several runs is a method, a side with one run is that policy alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """First minus second, over the questions that both answered.

    Attributes:
        difference: Mean over the questions.
        standard_error: Clustered by company and by run; NaN with a single company.
        degrees: Degrees of freedom of the standard error; NaN with a single company.
        runs: Runs of the first and of the second; with one run the error says nothing about other runs.
        runs_error: The part of the error that is of runs and not of questions; 0 with one run a side.
        low: Lower end of the interval.
        high: Upper end of the interval.
        p_value: Two-sided, of the clustered t-test; 1 when nothing can be tested.
        questions: n.
        clusters: Companies among them.
        correlation: Pearson's, of the two scores over the questions; None when either does not vary.
        first_better: Questions on which the first scored higher.
        second_better: Questions on which the second scored higher.
        mcnemar: Exact two-sided p-value of `exact_mcnemar` on these two numbers.
    """

    difference: float
    standard_error: float
    degrees: float
    runs: tuple[int, int]
    runs_error: float
    low: float
    high: float
    p_value: float
    questions: int
    clusters: int
    correlation: float | None
    first_better: int
    second_better: int
    mcnemar: float

    @property
    def about(self) -> About:
        """What the difference is of."""
        several = [runs > 1 for runs in self.runs]
        return "methods" if all(several) else "method and policy" if any(several) else "policies"


def paired_difference(
    first: Sequence[float], second: Sequence[float], clusters: Sequence[str], *, level: float = 0.95
) -> PairedDifference:
    """Compares two policies by their scores in [0, 1] of the same questions; see `crossed_difference`.

    Raises:
        ValueError: There are no questions, or the three lists are not of one length.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} scores")
    return crossed_difference([first], [second], clusters, level=level)


def crossed_difference(
    first: Sequence[Sequence[float]],
    second: Sequence[Sequence[float]],
    clusters: Sequence[str],
    *,
    level: float = 0.95,
) -> PairedDifference:
    """Compares two methods of R runs each by their scores of the same questions, `[R][n]`.

    Source: Miller, arXiv 2411.00640, section 4, clustered; with several runs crossed with them (`crossed`).

    A score is the share of a question's attempts that were right, so repeated attempts count once per question, and a
    question's score of a method is the mean over its runs. See `clustered_mean` for the standard error over companies,
    `crossed_error` for that over runs and `t_test` for the case that all clusters differ by the same amount.

    Raises:
        ValueError: There are no runs or no questions, or the lists are not of one length.
    """
    means = mean_scores(first), mean_scores(second)
    differences = [one - other for one, other in zip(*means, strict=True)]
    estimate = clustered_mean(differences, clusters)
    mean, groups = estimate.mean, estimate.clusters
    spreads = [run_spread(runs, clusters) for runs in (first, second)]
    error, degrees = crossed_error(estimate.error, estimate.degrees, spreads)
    margin, p_value = t_test(mean, error, degrees=degrees, clusters=groups, level=level)
    constant = any(max(scores) - min(scores) < NO_SPREAD for scores in means)
    better = sum(difference > NO_SPREAD for difference in differences)
    worse = sum(difference < -NO_SPREAD for difference in differences)
    return PairedDifference(
        difference=mean,
        standard_error=error,
        degrees=degrees,
        runs=(len(first), len(second)),
        runs_error=math.sqrt(max(0.0, error**2 - estimate.error**2)) if groups > 1 else 0.0,
        low=max(-1.0, mean - margin),
        high=min(1.0, mean + margin),
        p_value=p_value,
        questions=len(differences),
        clusters=groups,
        correlation=None if constant else statistics.correlation(*means),
        first_better=better,
        second_better=worse,
        mcnemar=exact_mcnemar(better, worse),
    )


def exact_mcnemar(first_only: int, second_only: int) -> float:
    """Two-sided p-value of McNemar's test without approximation: a fair coin on the questions that differ.

    Source: McNemar 1947; the exact form is the binomial sign test. With several attempts a question differs when its
    share of right attempts does. It takes questions for independent, so clusters of alike questions make it too bold,
    and the runs as given: it says nothing about other runs of the same methods.
    """
    from scipy.special import bdtr

    return float(min(1.0, 2 * bdtr(min(first_only, second_only), first_only + second_only, 0.5)))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values that bound the chance of any false finding among all of them (Holm 1979), keys as given."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, (name, value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * value))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What one policy, or one training method over several runs, scored.

    Attributes:
        label: Name in the report.
        shares: Question -> share of its attempts that were right; with several runs the mean over the runs.
        companies: Question -> company.
        runs: The shares of each run, on the same questions; empty for one run, whose shares are `shares`.
    """

    label: str
    shares: Mapping[str, float]
    companies: Mapping[str, str]
    runs: Sequence[Mapping[str, float]] = ()

    def of_runs(self, questions: Sequence[str]) -> list[list[float]]:
        """The scores of each run on these questions, `[R][n]`."""
        return [[shares[name] for name in questions] for shares in self.runs or (self.shares,)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One pair of policies or methods.

    Attributes:
        first: Label of the first.
        second: Label of the second.
        paired: First minus second.
        adjusted: Holm's p-value of the clustered t-test among all pairs.
        adjusted_mcnemar: Holm's p-value of the exact McNemar test.
        verdict: `shown` when both adjusted p-values are below 1 - level, `tests disagree` when one is. What it speaks
            of, methods or these policies, is `paired.about`.
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
    """Returns the scores over the questions that every run has a graded attempt at, each run counting the same."""
    found = [by_question(run) for run in runs]
    questions = sorted(set.intersection(*(set(run) for run in found)))
    each = [{name: share_right(run[name]) for name in questions} for run in found]
    return Scores(
        label=label,
        shares={name: math.fsum(shares[name] for shares in each) / len(each) for name in questions},
        companies={name: found[0][name][0].company for name in questions},
        runs=each,
    )


def compare_all(scores: Sequence[Scores], *, baseline: str = "", level: float = 0.95) -> list[Comparison]:
    """Compares every pair, later less earlier, or all others less the baseline; Holm adjusts the p-values of each test.

    Fewer pairs adjust less, so name a baseline beforehand when only differences from it are of interest.

    Raises:
        ValueError: A pair has no question in common.
    """
    pairs = [
        (first, second) if baseline == second.label else (second, first)
        for first, second in itertools.combinations(scores, 2)
        if not baseline or baseline in (first.label, second.label)
    ]
    names = [sorted(first.shares.keys() & second.shares.keys()) for first, second in pairs]
    results = [
        crossed_difference(
            first.of_runs(common),
            second.of_runs(common),
            [first.companies[name] for name in common],
            level=level,
        )
        for (first, second), common in zip(pairs, names, strict=True)
    ]
    adjusted = holm({str(place): result.p_value for place, result in enumerate(results)})
    mcnemar = holm({str(place): result.mcnemar for place, result in enumerate(results)})
    comparisons = []
    for place, ((first, second), common, result) in enumerate(zip(pairs, names, results, strict=True)):
        below = [adjusted[str(place)] < 1 - level, mcnemar[str(place)] < 1 - level]
        differences = {name: first.shares[name] - second.shares[name] for name in common}
        comparisons.append(
            Comparison(
                first=first.label,
                second=second.label,
                paired=result,
                adjusted=adjusted[str(place)],
                adjusted_mcnemar=mcnemar[str(place)],
                verdict="shown" if all(below) else "tests disagree" if any(below) else "not shown",
                gained=[name for name, difference in differences.items() if difference > NO_SPREAD],
                lost=[name for name, difference in differences.items() if difference < -NO_SPREAD],
            )
        )
    return comparisons
