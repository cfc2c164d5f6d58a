"""Comparison of policies and methods on the same questions: paired differences, two tests, and Holm's correction."""

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
"""What a comparison is about: a side with several runs is a method, a side with one run is that policy alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """First minus second, over the questions that both answered.

    Attributes:
        difference: Mean over the questions.
        standard_error: Standard error of the difference, clustered by company and by run; NaN with a single company.
        degrees: Degrees of freedom of the standard error; NaN with a single company.
        runs: Runs of the first and of the second side; with one run the error does not describe other runs.
        runs_error: The part of the standard error that the runs cause, not the questions; 0 with one run per side.
        low: Lower end of the interval.
        high: Upper end of the interval.
        p_value: Two-sided p-value of the clustered t-test; 1 when nothing can be tested.
        questions: Number of questions, n.
        clusters: Number of companies that the questions are about.
        correlation: Pearson correlation of the two scores over the questions; None when either does not vary.
        first_better: Number of questions on which the first scored higher.
        second_better: Number of questions on which the second scored higher.
        mcnemar: Two-sided p-value of `exact_mcnemar` on these two numbers.
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
        """Whether the difference is between methods, policies, or one of each."""
        several = [runs > 1 for runs in self.runs]
        return "methods" if all(several) else "method and policy" if any(several) else "policies"


def paired_difference(
    first: Sequence[float], second: Sequence[float], clusters: Sequence[str], *, level: float = 0.95
) -> PairedDifference:
    """Compare two policies by their scores in [0, 1] on the same questions; see `crossed_difference`.

    Raises:
        ValueError: There are no questions, or the three lists do not have the same length.
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
    """Compare two methods by the scores of their runs on the same questions.

    Source: Miller, arXiv 2411.00640, section 4, clustered; with several runs see the module `crossed`.

    A score is the share of a question's attempts that were right, so repeated attempts count once per question. The
    score of a method on a question is the mean over its runs. See `clustered_mean` for the standard error over
    companies, `crossed_error` for that over companies and runs, and `t_test` for the case that all clusters differ by
    the same amount.

    Args:
        first: Scores of the first method `[R][n]`.
        second: Scores of the second method; its number of runs may differ.
        clusters: Cluster of each question `[n]`.
        level: Confidence level of the interval.

    Raises:
        ValueError: There are no runs or no questions, or the lists do not have the same length.
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
    """Two-sided p-value of the exact McNemar test: a binomial test with p = 0.5 on the questions that differ.

    Source: McNemar 1947; the exact form is the sign test. With several attempts a question differs when its share of
    right attempts does. The test treats questions as independent, so clusters of similar questions make its p-values
    too small. It treats the runs as fixed, so it does not describe other runs of the same methods.

    Args:
        first_only: Number of questions on which the first scored higher.
        second_only: Number of questions on which the second scored higher.
    """
    from scipy.special import bdtr

    return float(min(1.0, 2 * bdtr(min(first_only, second_only), first_only + second_only, 0.5)))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values that control the probability of any false finding among all tests (Holm 1979), by name."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, (name, value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * value))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of one policy, or of one training method over several runs.

    Attributes:
        label: Name in the report.
        shares: Question -> share of its attempts that were right; with several runs the mean over the runs.
        companies: Question -> company.
        runs: The shares of each run, on the same questions; may be empty for one run, whose shares are `shares`.
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
        adjusted: p-value of the clustered t-test, adjusted by Holm over all pairs.
        adjusted_mcnemar: p-value of the exact McNemar test, adjusted in the same way.
        verdict: `shown` when both adjusted p-values are below 1 - level, `tests disagree` when one is. See
            `paired.about` for what the verdict is about: methods or these policies.
        gained: Questions on which the first scored higher.
        lost: Questions on which the first scored lower.
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
    """Return the scores on the questions at which every run has a graded attempt; each run has the same weight."""
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
    """Compare every pair, later minus earlier, or all others minus the baseline, and adjust the p-values by Holm.

    With fewer pairs the adjustment is smaller. So name a baseline beforehand if only differences from it are of
    interest.

    Args:
        scores: Scores of the policies or methods.
        baseline: Label of the baseline; empty: compare every pair.
        level: Confidence level of the intervals; 1 - level is the significance level of the verdicts.

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
