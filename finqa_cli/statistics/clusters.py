"""The mean of values that come in clusters (the questions about one company), and how well it is known."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteredMean:
    """A mean of n values in G clusters.

    Attributes:
        mean: Over all values, so that large clusters count for more.
        error: Its standard error; NaN with a single cluster.
        degrees: Degrees of freedom of that error, at most G - 1; NaN with a single cluster.
        count: n.
        clusters: G.
        correlation: Intraclass correlation of the values, by analysis of variance, cut to [0, 1]; 0 when no cluster
            has two values.
    """

    mean: float
    error: float
    degrees: float
    count: int
    clusters: int
    correlation: float


def clustered_mean(values: Sequence[float], clusters: Sequence[str]) -> ClusteredMean:
    """The mean with its cluster-robust standard error.

    SE^2 = sum over clusters of s_g^2 / (1 - n_g/n) / n^2 with s_g the sum of the cluster's residuals: the
    bias-reduced form CR2 (Bell & McCaffrey 2002, "Bias reduction in standard errors for linear regression with
    multi-stage samples"), which for clusters of one size is that of Miller, "Adding Error Bars to Evals", arXiv
    2411.00640, section 2.2, times G/(G-1). The degrees of freedom are Satterthwaite's for values that are correlated
    inside clusters as these are (Imbens & Kolesar 2016, "Robust standard errors in small samples", section 3).
    Clusters of one size give G - 1; a few large clusters among many small ones give far fewer.

    Raises:
        ValueError: There are no values, or not one cluster for each.
    """
    if not values or len(values) != len(clusters):
        raise ValueError(f"{len(values)} values and {len(clusters)} clusters")
    count = len(values)
    mean = math.fsum(values) / count
    members: dict[str, list[float]] = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        members[cluster].append(value - mean)
    if len(members) < 2:
        return ClusteredMean(
            mean=mean, error=math.nan, degrees=math.nan, count=count, clusters=len(members), correlation=0.0
        )
    correlation = _intraclass_correlation(list(members.values()))
    total = math.fsum(math.fsum(part) ** 2 / (1 - len(part) / count) for part in members.values())
    return ClusteredMean(
        mean=mean,
        error=math.sqrt(total) / count,
        degrees=_degrees(Counter(len(part) for part in members.values()), correlation),
        count=count,
        clusters=len(members),
        correlation=correlation,
    )


def _intraclass_correlation(residuals: Sequence[Sequence[float]]) -> float:
    """The ANOVA estimator (Donner 1986), (MSB - MSW) / (MSB + (n0 - 1) MSW), from residuals around the grand mean."""
    groups, count = len(residuals), sum(map(len, residuals))
    if count == groups:
        return 0.0
    means = [math.fsum(part) / len(part) for part in residuals]
    between = math.fsum(len(part) * mean**2 for part, mean in zip(residuals, means, strict=True)) / (groups - 1)
    spread = (value - mean for part, mean in zip(residuals, means, strict=True) for value in part)
    within = math.fsum(difference**2 for difference in spread) / (count - groups)
    size = (count - sum(len(part) ** 2 for part in residuals) / count) / (groups - 1)
    scale = between + (size - 1) * within
    return min(1.0, max(0.0, (between - within) / scale)) if scale > 0 else 0.0


def _degrees(sizes: Counter[int], correlation: float) -> float:
    """(tr M)^2 / tr M^2 for M[g,h] = p_g' Omega p_h, Omega exchangeable inside clusters.

    Here p_g = (1_g - w_g 1) / sqrt(1 - w_g) with w_g = n_g/n, so M depends on the sizes alone, and clusters of one size
    are taken together.
    """
    count = sum(size * number for size, number in sizes.items())
    share = {size: size / count for size in sizes}
    inside = {size: size * (1 - correlation) + correlation * size * size for size in sizes}
    total = math.fsum(number * inside[size] for size, number in sizes.items())

    def entry(one: int, other: int, *, same: bool) -> float:
        value = share[one] * share[other] * total - share[one] * inside[other] - share[other] * inside[one]
        scale = math.sqrt((1 - share[one]) * (1 - share[other]))
        return (value + (inside[one] if same else 0.0)) / scale

    trace = math.fsum(number * entry(size, size, same=True) for size, number in sizes.items())
    squares = [number * entry(size, size, same=True) ** 2 for size, number in sizes.items()]
    for one, number in sizes.items():
        for other, others in sizes.items():
            pairs = number * (others - 1 if one == other else others)
            squares.append(pairs * entry(one, other, same=False) ** 2)
    return trace**2 / math.fsum(squares)
