"""Student's t distribution, without scipy: for any positive number of degrees of freedom, whole or not."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_CLOSE = 3e-16
_MOST_TERMS = 10_000


def t_probability(t: float, degrees: float) -> float:
    """P(T <= t): 1 - I_x(degrees/2, 1/2) / 2 with x = degrees / (degrees + t^2), for t >= 0 (DLMF 8.17).

    Raises:
        ValueError: `degrees` is not above 0.
    """
    if not degrees > 0:
        raise ValueError(f"no distribution with {degrees} degrees of freedom")
    tail = _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5) / 2
    return 1 - tail if t >= 0 else tail


def two_sided(t: float, degrees: float) -> float:
    """P(|T| >= |t|), precise far out in the tail too."""
    return _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t, by bisection on its distribution function.

    Raises:
        ValueError: The probability is not inside (0, 1), or `degrees` is not above 0.
    """
    if not 0 < probability < 1 or not degrees > 0:
        raise ValueError(f"no quantile for probability {probability} and {degrees} degrees of freedom")
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, 1.0
    while t_probability(high, degrees) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_probability(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised I_x(a, b), by the continued fraction DLMF 8.17.22 on the side where it converges fast."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    turned = x > (a + 1) / (a + b + 2)
    if turned:
        x, a, b = 1 - x, b, a
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    value = math.exp(scale) / (a * _fraction(x, a, b))
    return 1 - value if turned else value


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)), by the modified Lentz algorithm (Press et al., Numerical Recipes, 5.2)."""
    value, upper, lower = 1.0, 1.0, 0.0
    for term in range(1, _MOST_TERMS):
        half = term // 2
        if term % 2:
            step = -(a + half) * (a + b + half) * x / ((a + term - 1) * (a + term))
        else:
            step = half * (b - half) * x / ((a + term - 1) * (a + term))
        lower = 1 / _away_from_0(1 + step * lower)
        upper = _away_from_0(1 + step / upper)
        value *= upper * lower
        if abs(upper * lower - 1) < _CLOSE:
            break
    return value


def _away_from_0(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
