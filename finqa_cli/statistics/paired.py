"""Two policies on the same questions: the difference question by question, and two tests of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finqa_cli.statistics.clusters import clustered_mean
from finqa_cli.statistics.intervals import NO_SPREAD, unseen_share
from finqa_cli.statistics.student import t_quantile, two_sided


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """First minus second, over the questions that both answered.

    Attributes:
        difference: Mean over the questions.
        standard_error: Clustered by company; NaN with a single company.
        low: Lower end of the interval.
        high: Upper end of the interval.
        p_value: Two-sided, of the clustered t-test; 1 when nothing can be said.
        questions: n.
        clusters: Companies among them.
        correlation: Pearson's, of the two scores over the questions; None when either does not vary.
        first_better: Questions on which the first scored higher.
        second_better: Questions on which the second scored higher.
        mcnemar: Exact two-sided p-value of `exact_mcnemar` on these two numbers.
    """

    difference: float
    standard_error: float
    low: float
    high: float
    p_value: float
    questions: int
    clusters: int
    correlation: float | None
    first_better: int
    second_better: int
    mcnemar: float


def paired_difference(
    first: Sequence[float], second: Sequence[float], clusters: Sequence[str], *, level: float = 0.95
) -> PairedDifference:
    """Compares scores in [0, 1] of the same questions (Miller, arXiv 2411.00640, section 4, clustered).

    A score is the share of a question's attempts that were right, so repeated attempts count once per question. See
    `clustered_mean` for the standard error. When all clusters differ by the same amount it is 0; the interval is then
    widened by the share of clusters that may differ (`unseen_share`), and the p-value is that of a sign test over the
    clusters.

    Raises:
        ValueError: There are no questions, or the three lists are not of one length.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} scores")
    differences = [one - other for one, other in zip(first, second, strict=True)]
    estimate = clustered_mean(differences, clusters)
    mean, groups = estimate.mean, estimate.clusters
    if groups < 2:
        margin, p_value = math.inf, 1.0
    elif estimate.error < NO_SPREAD:
        margin = unseen_share(groups, level) * (1 + abs(mean))
        p_value = min(1.0, 2 * 0.5**groups) if abs(mean) > NO_SPREAD else 1.0
    else:
        margin = t_quantile((1 + level) / 2, estimate.degrees) * estimate.error
        p_value = two_sided(mean / estimate.error, estimate.degrees)
    better = sum(difference > NO_SPREAD for difference in differences)
    worse = sum(difference < -NO_SPREAD for difference in differences)
    return PairedDifference(
        difference=mean,
        standard_error=estimate.error,
        low=max(-1.0, mean - margin),
        high=min(1.0, mean + margin),
        p_value=p_value,
        questions=len(differences),
        clusters=groups,
        correlation=correlation(first, second),
        first_better=better,
        second_better=worse,
        mcnemar=exact_mcnemar(better, worse),
    )


def exact_mcnemar(first_only: int, second_only: int) -> float:
    """Two-sided p-value of McNemar's test without approximation: a fair coin on the questions that differ.

    Source: McNemar 1947; the exact form is the binomial sign test. With several attempts a question differs when its
    share of right attempts does. It takes questions for independent, so clusters of alike questions make it too bold.
    """
    number, fewer = first_only + second_only, min(first_only, second_only)
    tail = ways = 1
    for heads in range(fewer):
        ways = ways * (number - heads) // (heads + 1)
        tail += ways
    return float(min(1.0, 2 * tail / 2**number))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values that bound the chance of any false finding among all of them (Holm 1979), keys as given."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, (name, value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * value))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's; None when either list does not vary."""
    count = len(first)
    means = math.fsum(first) / count, math.fsum(second) / count
    spreads = [
        math.fsum((value - mean) ** 2 for value in values) for values, mean in zip((first, second), means, strict=True)
    ]
    if min(spreads) < NO_SPREAD:
        return None
    shared = math.fsum((one - means[0]) * (other - means[1]) for one, other in zip(first, second, strict=True))
    return max(-1.0, min(1.0, shared / math.sqrt(spreads[0] * spreads[1])))
