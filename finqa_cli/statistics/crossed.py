"""Standard errors with two sources of chance: the training runs (seeds) of a method, and the companies of questions.

All R runs of a method answer the same questions, so runs and companies are crossed random effects. The variance of a
difference of two means over runs is

    V = V_company + max(0, V_runs - V_noise)

- `V_company` is the cluster-robust variance over questions of the difference of the means over the runs
  (`clustered_mean`).
- `V_runs` is the sum over the methods of s^2 / R, with s the standard deviation of the runs' means.
- `V_noise` is the part of `V_runs` that questions alone explain: the cluster-robust variance of each run's deviations
  from the mean over the runs. The noise of questions and attempts is in `V_company` already, so it is subtracted once.

This is the two-way clustered variance of Cameron, Gelbach & Miller 2011, "Robust inference with multiway clustering",
Journal of Business & Economic Statistics 29(2), with small-sample factors in each part, and at least `V_company`. For
clusters of equal size it is the analysis-of-variance estimate of the mixed model. The degrees of freedom are
Satterthwaite's (1946, "An approximate distribution of estimates of variance components"). The runs of each method count
R - 1, so methods may have different spreads (Welch). If the spread between runs is within the noise, the degrees of
freedom are those of `V_company`.

Runs with equal seeds are not treated as pairs: two methods with the same seed share nothing that would make their
results alike. `python -m benchmarks.seeds` measures coverage and false verdicts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from finqa_cli.statistics.intervals import Interval, clustered_mean, share_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpread:
    """Spread between the runs of one method, as variances of the mean over the runs.

    Attributes:
        runs: Number of runs, R.
        total: s^2 / R, with s the standard deviation of the runs' scores; 0 for one run.
        noise: Part of `total` that the questions explain; 0 for one run.
        noise_degrees: Degrees of freedom of the noise; infinite for one run.
    """

    runs: int
    total: float
    noise: float
    noise_degrees: float

    @property
    def between(self) -> float:
        """Estimated variance of the accuracy of one run on the whole population of questions, without their noise."""
        return self.runs * max(0.0, self.total - self.noise)


ONE_RUN = RunSpread(runs=1, total=0.0, noise=0.0, noise_degrees=math.inf)
"""A single policy: nothing is known or reported about other runs of its method."""


def run_spread(runs: Sequence[Sequence[float]], clusters: Sequence[str]) -> RunSpread:
    """Return the spread between the runs of a method; `ONE_RUN` for one run or fewer than two clusters.

    Args:
        runs: Score of each question `[R][n]`, questions in the same order.
        clusters: Cluster of each question `[n]`.

    Raises:
        ValueError: There is no run, or the runs and the clusters do not have the same length.
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
    """Return the spread of runs with these figures.

    Args:
        values: Figure of each run `[R]`, at least two; adding a constant to all has no effect.
        errors: Standard error `[R]` of each run's deviation from the mean over the runs, clustered by question or
            company.
        degrees: Degrees of freedom of one of these errors.
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
    """Return the standard error and its degrees of freedom over companies and runs; see the module.

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
    """Return the mean over the runs of a method with its interval over companies and runs.

    For one run it is `clustered_interval`, which does not describe other runs.

    Args:
        runs: Scores in [0, 1] of each question `[R][n]`, questions in the same order.
        clusters: Cluster of each question `[n]`.
        level: Confidence level.

    Raises:
        ValueError: There is no run, no question, or not one cluster for each.
    """
    estimate = clustered_mean(mean_scores(runs), clusters)
    error, degrees = crossed_error(estimate.error, estimate.degrees, [run_spread(runs, clusters)])
    return share_interval(estimate, error, degrees, level=level)


def mean_scores(runs: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over the runs of each question's score `[n]`.

    Raises:
        ValueError: The runs do not have the same number of scores.
    """
    return [math.fsum(values) / len(runs) for values in zip(*runs, strict=True)]
