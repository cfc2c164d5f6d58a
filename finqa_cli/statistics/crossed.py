"""Two sources of chance at once: the training runs (seeds) of a method, and the companies that questions are about.

All R runs of a method answer the same questions, so runs and companies are crossed random effects. The variance of a
difference of two means over runs is

    V = V_company + max(0, V_runs - V_noise)

`V_company` is the cluster-robust variance of the differences by question of the means over the runs (`clustered_mean`),
`V_runs` the sum over the methods of s^2 / R with s the standard deviation of its runs' means, and `V_noise` that part
of `V_runs` which questions alone explain: the cluster-robust variance of each run's deviations from the mean over the
runs. Questions and attempts are in `V_company` as well, so it is subtracted once. This is the two-way clustered
variance of Cameron, Gelbach & Miller 2011, "Robust inference with multiway clustering", Journal of Business & Economic
Statistics 29(2), with small-sample factors in each part, never less than `V_company`; for equal clusters it is the
estimate by analysis of variance of the mixed model. Its degrees of freedom are Satterthwaite's (1946, "An approximate
distribution of estimates of variance components"), each method's runs counting R - 1, so methods may spread
differently (Welch). Where the spread between runs is within the noise, they are those of `V_company`.

Runs of equal seeds are not taken for pairs: two methods that begin with the same seed share nothing that would make
their ends alike. `python -m benchmarks.seeds` measures coverage and false verdicts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from finqa_cli.statistics.intervals import Interval, clustered_mean, share_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpread:
    """How the runs of one method spread, as variances of the mean over them.

    Attributes:
        runs: Number of runs, R.
        total: s^2 / R, s the standard deviation of what the runs scored; 0 for one run.
        noise: Part of it that the questions explain; 0 for one run.
        noise_degrees: Degrees of freedom of the noise; infinite for one run.
    """

    runs: int
    total: float
    noise: float
    noise_degrees: float

    @property
    def between(self) -> float:
        """Estimated variance of what one run scores over all questions there might be, without noise of questions."""
        return self.runs * max(0.0, self.total - self.noise)


ONE_RUN = RunSpread(runs=1, total=0.0, noise=0.0, noise_degrees=math.inf)
"""A single policy: nothing is known or reported about other runs of its method."""


def run_spread(runs: Sequence[Sequence[float]], clusters: Sequence[str]) -> RunSpread:
    """Returns the spread between the runs of a method.

    Args:
        runs: Score of each question `[R][n]`, questions in one order.
        clusters: Cluster of each question `[n]`.

    Raises:
        ValueError: There is no run, no question, or not one cluster for each.
    """
    if len(runs) == 1 or len(set(clusters)) < 2:
        return ONE_RUN
    center = mean_scores(runs)
    deviations = [[value - mean for value, mean in zip(run, center, strict=True)] for run in runs]
    parts = [clustered_mean(deviation, clusters) for deviation in deviations]
    return spread_of(
        [part.mean for part in parts], [part.error for part in parts], statistics.fmean(part.degrees for part in parts)
    )


def spread_of(values: Sequence[float], errors: Sequence[float], degrees: float) -> RunSpread:
    """Returns the spread of runs with these figures.

    Args:
        values: Figure of each run `[R]`, at least two; a constant that is common to all has no effect.
        errors: Standard error of each run's deviation from the mean over the runs, by question or company.
        degrees: Degrees of freedom of such an error.
    """
    count = len(values)
    return RunSpread(
        runs=count,
        total=statistics.variance(values) / count,
        # the deviations of R runs from their mean have R - 1 degrees of freedom
        noise=math.fsum(error**2 for error in errors) / (count * (count - 1)),
        noise_degrees=(count - 1) * degrees,
    )


def crossed_error(error: float, degrees: float, spreads: Sequence[RunSpread]) -> tuple[float, float]:
    """Returns standard error and degrees of freedom over companies and runs; see the module.

    Args:
        error: Standard error over companies of the mean over runs, or of a difference of two; NaN where unknown.
        degrees: Its degrees of freedom.
        spreads: Spread of the runs of each method in the mean or difference.
    """
    companies = error**2
    excess = math.fsum(each.total - each.noise for each in spreads)
    if not excess > 0:
        return error, degrees
    variance = companies + excess
    squares = companies**2 / degrees + math.fsum(
        each.total**2 / (each.runs - 1) + each.noise**2 / each.noise_degrees for each in spreads if each.runs > 1
    )
    return math.sqrt(variance), min(degrees, max(1.0, variance**2 / squares))


def crossed_interval(runs: Sequence[Sequence[float]], clusters: Sequence[str], *, level: float = 0.95) -> Interval:
    """Returns the mean over the runs of a method with its interval over companies and runs.

    For one run it is `clustered_interval`, and says nothing about other runs.

    Args:
        runs: Scores in [0, 1] of each question `[R][n]`, questions in one order.
        clusters: Cluster of each question `[n]`.
        level: Confidence level.

    Raises:
        ValueError: There is no run, no question, or not one cluster for each.
    """
    estimate = clustered_mean(mean_scores(runs), clusters)
    error, degrees = crossed_error(estimate.error, estimate.degrees, [run_spread(runs, clusters)])
    return share_interval(estimate, error, degrees, level=level)


def mean_scores(runs: Sequence[Sequence[float]]) -> list[float]:
    """Returns the mean over the runs of each question's score.

    Raises:
        ValueError: The runs have not one score each for the same number of questions.
    """
    return [math.fsum(values) / len(runs) for values in zip(*runs, strict=True)]
