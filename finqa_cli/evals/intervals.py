"""Means with confidence intervals for questions that come in clusters (the questions about one company)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean, its standard error, and the two ends of the interval."""

    mean: float
    standard_error: float
    low: float
    high: float
    clusters: int


def clustered_interval(values: Sequence[float], clusters: Sequence[str], *, level: float = 0.95) -> Interval:
    """The mean of values in [0, 1] with the interval of its clustered standard error.

    SE^2 = G/(G-1) * sum over clusters of (sum of residuals)^2 / n^2: Miller, "Adding Error Bars to Evals",
    arXiv 2411.00640, section 2.2, with the usual small-sample factor for G clusters; the quantile is Student's with
    G - 1 degrees of freedom. With fewer than two clusters nothing is known about the spread and the interval is [0, 1].
    When all values are 0, or all are 1, the standard error is 0, although a further cluster might differ; the far end
    is then that of the exact binomial bound over clusters ("rule of three"): (1-level)/2 = (1-p)^G.

    Raises:
        ValueError: There are no values, or not one cluster for each.
    """
    if not values or len(values) != len(clusters):
        raise ValueError(f"{len(values)} values and {len(clusters)} clusters")
    count = len(values)
    mean = math.fsum(values) / count
    residuals: dict[str, list[float]] = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        residuals[cluster].append(value - mean)
    groups = len(residuals)
    if groups < 2:
        return Interval(mean=mean, standard_error=math.nan, low=0.0, high=1.0, clusters=groups)
    total = math.fsum(math.fsum(members) ** 2 for members in residuals.values())
    error = math.sqrt(groups / (groups - 1) * total) / count
    margin = t_quantile((1 + level) / 2, groups - 1) * error
    if error == 0.0 and mean in (0.0, 1.0):
        margin = 1 - ((1 - level) / 2) ** (1 / groups)
    return Interval(
        mean=mean,
        standard_error=error,
        low=max(0.0, mean - margin),
        high=min(1.0, mean + margin),
        clusters=groups,
    )


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t, by bisection on its distribution function.

    Raises:
        ValueError: The probability is not inside (0, 1), or there is no degree of freedom.
    """
    if not 0 < probability < 1 or degrees < 1:
        raise ValueError(f"no quantile for probability {probability} and {degrees} degrees of freedom")
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, 1.0
    while _t_distribution(high, degrees) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _t_distribution(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def _t_distribution(t: float, degrees: int) -> float:
    """P(T <= t) for t >= 0: the finite trigonometric sums of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for step in range(3 if odd else 2, degrees - 1, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 + inside / 2
