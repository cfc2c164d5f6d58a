"""Means and shares of clustered values (the questions about one company form a cluster), with intervals and tests."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

NO_SPREAD = 1e-12
"""A standard error below this is rounding error: all clusters have the same mean."""


def t_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t distribution for any positive number of degrees of freedom.

    scipy is imported on first use. `scipy.special` is used because importing `scipy.stats` takes a second longer.

    Raises:
        ValueError: The probability is not inside (0, 1), or `degrees` is not above 0.
    """
    from scipy.special import stdtrit

    if not 0 < probability < 1 or not degrees > 0:
        raise ValueError(f"no quantile for probability {probability} and {degrees} degrees of freedom")
    return float(stdtrit(degrees, probability))


def two_sided(t: float, degrees: float) -> float:
    """Two-sided p-value P(|T| >= |t|) of Student's t distribution."""
    from scipy.special import stdtr

    return float(2 * stdtr(degrees, -abs(t)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteredMean:
    """A mean of n values in G clusters.

    Attributes:
        mean: Mean over all values, so that large clusters count for more.
        error: Standard error of the mean; NaN with a single cluster.
        degrees: Degrees of freedom of that error, at most G - 1; NaN with a single cluster.
        count: Number of values, n.
        clusters: Number of clusters, G.
        correlation: Intraclass correlation of the values, by analysis of variance, clipped to [0, 1]; 0 when no cluster
            has two values.
    """

    mean: float
    error: float
    degrees: float
    count: int
    clusters: int
    correlation: float


def clustered_mean(values: Sequence[float], clusters: Sequence[str]) -> ClusteredMean:
    """Return the mean with its cluster-robust standard error.

    SE^2 = sum over clusters of s_g^2 / (1 - n_g/n) / n^2, with s_g the sum of the cluster's residuals. This is the
    bias-reduced form CR2 (Bell & McCaffrey 2002, "Bias reduction in standard errors for linear regression with
    multi-stage samples"). For clusters of equal size, SE^2 is that of Miller, "Adding Error Bars to Evals", arXiv
    2411.00640, section 2.2, times G/(G-1). The degrees of freedom are Satterthwaite's for values with the estimated
    correlation inside clusters (Imbens & Kolesar 2016, "Robust standard errors in small samples", section 3). Clusters
    of equal size give G - 1; a few large clusters among many small ones give far fewer.

    Args:
        values: Values `[n]`.
        clusters: Cluster of each value `[n]`.

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
    """ANOVA estimator (Donner 1986), (MSB - MSW) / (MSB + (n0 - 1) MSW), from residuals around the grand mean."""
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
    """Satterthwaite's degrees of freedom (tr M)^2 / tr M^2, for M[g,h] = p_g' Omega p_h.

    Omega is exchangeable inside clusters, and p_g = (1_g - w_g 1) / sqrt(1 - w_g) with w_g = n_g/n. M depends on the
    sizes alone, so clusters of the same size are computed together.

    Args:
        sizes: Cluster size -> number of clusters with this size.
        correlation: Correlation inside clusters.
    """
    import numpy as np

    size = np.array(list(sizes), dtype=float)
    number = np.array(list(sizes.values()), dtype=float)
    share = size / (number @ size)
    inside = size * (1 - correlation) + correlation * size**2
    crossed = np.outer(share, inside)
    scale = np.sqrt(1 - share)
    between = (np.outer(share, share) * (number @ inside) - crossed - crossed.T) / np.outer(scale, scale)
    own = np.diag(between) + inside / scale**2
    squares = number @ (own**2 - np.diag(between) ** 2) + number @ between**2 @ number
    return float((number @ own) ** 2 / squares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean, its standard error, the two ends of its interval, and the number of clusters."""

    mean: float
    standard_error: float
    low: float
    high: float
    clusters: int


def clustered_interval(values: Sequence[float], clusters: Sequence[str], *, level: float = 0.95) -> Interval:
    """Return the mean of values in [0, 1] with an interval that stays inside [0, 1] and is accurate near 0 and 1.

    It is Wilson's score interval (Wilson 1927) for the effective number of independent values, m(1-m)/SE^2, which has
    the same standard error as the clustered mean. Korn & Graubard 1998 do the same with the interval of Clopper and
    Pearson. The quantile is Student's at the degrees of freedom of the error; see `clustered_mean`. The symmetric
    interval m +- t SE covers 83 to 92 % instead of 95 % if few values are 1, or few companies have most questions.

    With fewer than two clusters nothing is known about the spread, and the interval is [0, 1]. When all clusters have
    the same mean, the standard error is 0, although another cluster might differ; the half width is then
    `unseen_share`.

    Raises:
        ValueError: There are no values, or not one cluster for each.
    """
    estimate = clustered_mean(values, clusters)
    return share_interval(estimate, estimate.error, estimate.degrees, level=level)


def share_interval(estimate: ClusteredMean, error: float, degrees: float, *, level: float) -> Interval:
    """Return the interval of `clustered_interval` around a mean with the standard error `error`."""
    mean = centre = estimate.mean
    if estimate.clusters < 2:
        margin = math.inf
    elif error < NO_SPREAD:
        margin = unseen_share(estimate.clusters, level)
    else:
        quantile = t_quantile((1 + level) / 2, degrees)
        effective = mean * (1 - mean) / error**2
        weight = quantile**2 / effective
        centre = (mean + weight / 2) / (1 + weight)
        margin = quantile * math.sqrt(mean * (1 - mean) / effective + weight / (4 * effective)) / (1 + weight)
    return Interval(
        mean=mean,
        standard_error=error,
        low=min(max(0.0, centre - margin), mean),
        high=max(min(1.0, centre + margin), mean),
        clusters=estimate.clusters,
    )


def mean_interval(
    values: Sequence[float], clusters: Sequence[str], *, level: float = 0.95
) -> tuple[float, float] | None:
    """Return the two ends of the clustered interval of a mean, mean +- t SE; see `clustered_mean`.

    For shares use `clustered_interval`, which stays inside [0, 1].

    Returns:
        Lower and upper end; None if nothing is known about the spread: fewer than two clusters, or all with the same
        mean.

    Raises:
        ValueError: There are no values, or not one cluster for each.
    """
    estimate = clustered_mean(values, clusters)
    if estimate.clusters < 2 or estimate.error < NO_SPREAD:
        return None
    margin = t_quantile((1 + level) / 2, estimate.degrees) * estimate.error
    return estimate.mean - margin, estimate.mean + margin


def reward_interval(
    rewards: Sequence[float], clusters: Sequence[str], *, level: float = 0.95
) -> tuple[float, float] | None:
    """Return the two ends of the clustered interval of a mean reward; None if it is not known.

    Rewards that all lie in [0, 1] get the interval of shares (`clustered_interval`), others that of `mean_interval`.

    Raises:
        ValueError: There are no rewards, or not one cluster for each.
    """
    if not all(0 <= reward <= 1 for reward in rewards):
        return mean_interval(rewards, clusters, level=level)
    interval = clustered_interval(rewards, clusters, level=level)
    return (interval.low, interval.high) if interval.clusters > 1 else None


def unseen_share(clusters: int, level: float) -> float:
    """Largest share p of clusters that may differ if none of G does: (1-level)/2 = (1-p)^G, the exact rule of three."""
    return float(1 - ((1 - level) / 2) ** (1 / clusters))


def t_test(value: float, error: float, *, degrees: float, clusters: int, level: float) -> tuple[float, float]:
    """Half width of the interval around an estimate, and the two-sided p-value of the hypothesis that it is 0.

    When all clusters have the same mean, the standard error is 0. The half width then follows from the share of
    clusters that may differ (`unseen_share`), and the p-value is that of a sign test over the clusters. With fewer than
    two clusters nothing is known: the half width is infinite and the p-value 1.

    Args:
        value: The estimate.
        error: Its standard error.
        degrees: Degrees of freedom of the error.
        clusters: Number of clusters.
        level: Confidence level.
    """
    if clusters < 2:
        return math.inf, 1.0
    if error < NO_SPREAD:
        p_value = min(1.0, 2 * 0.5**clusters) if abs(value) > NO_SPREAD else 1.0
        return unseen_share(clusters, level) * (1 + abs(value)), p_value
    return t_quantile((1 + level) / 2, degrees) * error, two_sided(value / error, degrees)
