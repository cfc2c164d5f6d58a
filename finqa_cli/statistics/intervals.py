"""Confidence intervals of shares, for questions that come in clusters (the questions about one company)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from finqa_cli.statistics.clusters import ClusteredMean, clustered_mean
from finqa_cli.statistics.student import t_quantile

NO_SPREAD = 1e-12
"""A standard error below this is rounding: all clusters agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean, its standard error, and the two ends of the interval."""

    mean: float
    standard_error: float
    low: float
    high: float
    clusters: int


def clustered_interval(values: Sequence[float], clusters: Sequence[str], *, level: float = 0.95) -> Interval:
    """The mean of values in [0, 1] with an interval that stays inside [0, 1] and is right near its ends.

    Wilson's score interval (Wilson 1927) for the number of independent values that would have the mean's clustered
    standard error, m(1-m)/SE^2 (Korn & Graubard 1998 do so with Clopper and Pearson's), with Student's quantile at
    the error's degrees of freedom; see `clustered_mean`. The symmetric interval m +- t SE covers 83 to 92 % instead of
    95 % where few are right or few companies hold most questions.

    With fewer than two clusters nothing is known about the spread and the interval is [0, 1]. When all clusters have
    the same mean the standard error is 0, although a further cluster might differ; the ends are then those of
    `unseen_share`.

    Raises:
        ValueError: There are no values, or not one cluster for each.
    """
    estimate = clustered_mean(values, clusters)
    low, high = _ends(estimate, level)
    return Interval(
        mean=estimate.mean,
        standard_error=estimate.error,
        low=min(max(0.0, low), estimate.mean),
        high=max(min(1.0, high), estimate.mean),
        clusters=estimate.clusters,
    )


def unseen_share(clusters: int, level: float) -> float:
    """The share of clusters that may differ when none of G did: (1-level)/2 = (1-p)^G, the "rule of three" exactly."""
    return float(1 - ((1 - level) / 2) ** (1 / clusters))


def _ends(estimate: ClusteredMean, level: float) -> tuple[float, float]:
    mean = estimate.mean
    if estimate.clusters < 2:
        return 0.0, 1.0
    if estimate.error < NO_SPREAD:
        margin = unseen_share(estimate.clusters, level)
        return mean - margin, mean + margin
    quantile = t_quantile((1 + level) / 2, estimate.degrees)
    effective = mean * (1 - mean) / estimate.error**2
    weight = quantile**2 / effective
    centre = (mean + weight / 2) / (1 + weight)
    margin = quantile * math.sqrt(mean * (1 - mean) / effective + weight / (4 * effective)) / (1 + weight)
    return centre - margin, centre + margin
