"""Do 95 % intervals hold the truth 95 times of 100? Seeded simulations; what was measured stands in each test."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from finqa_cli.statistics import clustered_interval, paired_difference

ONES = [1] * 60
EQUAL = [8] * 30
FEW = [10] * 12
UNEVEN = [1] * 12 + [2] * 9 + [3] * 6 + [5] * 5 + [8] * 4 + [12] * 2 + [18]
LOPSIDED = [1] * 3 + [2] * 3 + [4, 6, 12, 20]


def names_of(sizes: Sequence[int]) -> list[str]:
    return [str(cluster) for cluster, size in enumerate(sizes) for _ in range(size)]


def chances(rng: random.Random, sizes: Sequence[int], mean: float, correlation: float) -> list[float]:
    """A chance per question, the same within a company: beta-distributed with this mean and intraclass correlation."""
    if not correlation:
        return [mean] * sum(sizes)
    total = (1 - correlation) / correlation
    drawn = [rng.betavariate(mean * total, (1 - mean) * total) for _ in sizes]
    return [chance for chance, size in zip(drawn, sizes, strict=True) for _ in range(size)]


def tolerance(draws: int, *, share: float = 0.95) -> float:
    """One point, and two standard errors of the simulation itself."""
    return 0.01 + 2 * math.sqrt(share * (1 - share) / draws)


def coverage(sizes: Sequence[int], mean: float, correlation: float, draws: int) -> float:
    rng, names, covered = random.Random(1), names_of(sizes), 0
    for _ in range(draws):
        values = [float(rng.random() < chance) for chance in chances(rng, sizes, mean, correlation)]
        interval = clustered_interval(values, names)
        covered += interval.low <= mean <= interval.high
    return covered / draws


def paired_coverage(sizes: Sequence[int], effect: float, correlation: float, draws: int) -> tuple[float, float]:
    """Share of intervals that hold the difference, and share of p-values below 0.05.

    Of each question whose verdict changes (one in four) the chance to change for the better varies by company.
    """
    rng, names, covered, below, changing = random.Random(2), names_of(sizes), 0, 0, 0.25
    for _ in range(draws):
        first, second = [], []
        for chance in chances(rng, sizes, 0.5 + effect / changing / 2, correlation):
            if rng.random() < changing:
                better = rng.random() < chance
                first.append(float(better))
                second.append(float(not better))
            else:
                both = float(rng.random() < 0.5)
                first.append(both)
                second.append(both)
        paired = paired_difference(first, second, names)
        covered += paired.low <= effect <= paired.high
        below += paired.p_value < 0.05
    return covered / draws, below / draws


@pytest.mark.parametrize(
    ("sizes", "mean", "correlation"),
    [(EQUAL, 0.5, 0.2), (EQUAL, 0.1, 0.1), (ONES, 0.1, 0.0), (UNEVEN, 0.3, 0.15), (FEW, 0.7, 0.1)],
)
def test_intervals_of_accuracy_hold_it_as_often_as_they_say(sizes: list[int], mean: float, correlation: float) -> None:
    assert coverage(sizes, mean, correlation, 1500) == pytest.approx(0.95, abs=tolerance(1500))


@pytest.mark.parametrize(("sizes", "effect", "correlation"), [(EQUAL, 0.0, 0.2), (UNEVEN, 0.08, 0.1)])
def test_intervals_of_differences_hold_them(sizes: list[int], effect: float, correlation: float) -> None:
    held, below = paired_coverage(sizes, effect, correlation, 1500)
    assert held == pytest.approx(0.95, abs=tolerance(1500))
    if not effect:
        assert below == pytest.approx(0.05, abs=tolerance(1500)), "false alarms at 5 %"


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.2])
@pytest.mark.parametrize("mean", [0.5, 0.1])
@pytest.mark.parametrize("sizes", [ONES, EQUAL, FEW, UNEVEN, [4] * 100], ids=str)
def test_coverage_on_a_grid(sizes: list[int], mean: float, correlation: float) -> None:
    assert coverage(sizes, mean, correlation, 10_000) == pytest.approx(0.95, abs=tolerance(10_000))


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.2])
def test_where_few_companies_hold_most_questions_intervals_are_wide_rather_than_wrong(correlation: float) -> None:
    """Half the questions are about two of ten companies: the textbook interval covers 85 to 91 % here."""
    assert coverage(LOPSIDED, 0.5, correlation, 10_000) >= 0.95
    assert paired_coverage(LOPSIDED, 0.05, correlation, 10_000)[0] >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.2])
@pytest.mark.parametrize("sizes", [ONES, EQUAL, FEW, UNEVEN], ids=str)
def test_coverage_and_false_alarms_of_differences_on_a_grid(sizes: list[int], correlation: float) -> None:
    for effect in (0.0, 0.08):
        held, below = paired_coverage(sizes, effect, correlation, 5_000)
        assert held == pytest.approx(0.95, abs=tolerance(5_000))
        assert effect or below == pytest.approx(0.05, abs=tolerance(5_000))
