"""Do verdicts on methods hold when training runs of one method end at different accuracies?

    python -m benchmarks.seeds [--draws 4000]

Simulates two equal methods, several runs of each on the same questions about the same companies, and compares them with
what `finqa compare` uses. Runs of a method vary by 2, 4 or 7 points (standard deviation of the true accuracy), methods
differ in what companies they are good at (5 points), and so do runs (5 points); questions vary by 25 points in how hard
they are and companies by 10, and every question has one attempt per run.

Prints, for each design, the share of 95 % intervals that hold the difference of the methods, the share of differences
of methods that are called shown although there is none, and with one run a side the share of intervals that hold the
difference of the two policies. Exits 1 when three runs cover less than 93 or more than 97 %, or give more than 6 %
false verdicts, or one run gives any.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finqa_cli.statistics import Scores, compare_all

SPREADS = (0.02, 0.04, 0.07)
DESIGNS = ((16, 8), (20, 10), (30, 10), (60, 2), (60, 5))
"""Companies, and questions about each."""

_LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Two methods that were run and asked.

    Attributes:
        scores: Of the two methods.
        policies: Difference in true accuracy of the mean policies of the two.
    """

    scores: tuple[Scores, Scores]
    policies: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of the simulated comparisons.

    Attributes:
        covered: The interval holds the difference of the methods, which is 0.
        false: A difference of the methods is called shown.
        t_test: The p-value of the t-test alone is below 5 %, of methods where there are several runs.
        policies: The interval holds the difference of the policies.
    """

    covered: float
    false: float
    t_test: float
    policies: float


def simulate(
    draws: int,
    *,
    runs: tuple[int, int],
    companies: int,
    per_company: int,
    spread: tuple[float, float],
    seed: int,
    effect: float = 0.0,
) -> Iterator[Simulated]:
    """Yields comparisons of two methods.

    Args:
        draws: How many.
        runs: Runs of the two methods.
        companies: Number of companies.
        per_company: Questions about each.
        spread: Standard deviation of the true accuracy of a run, of each method.
        seed: Of all random numbers.
        effect: True accuracy of the first method less that of the second.
    """
    random = np.random.default_rng(seed)
    names = [f"{company}/{place}" for company in range(companies) for place in range(per_company)]
    about = {name: name.partition("/")[0] for name in names}
    for _ in range(draws):
        hard = random.normal(0, 0.1, (companies, 1)) + random.normal(0, 0.25, (companies, per_company))
        sides, accuracies = [], []
        for label, count, deviation, shift in zip("ab", runs, spread, (effect / 2, -effect / 2), strict=True):
            ends = random.normal(shift, deviation, (count, 1, 1))
            strengths = random.normal(0, 0.05, (companies, 1)) + random.normal(0, 0.05, (count, companies, 1))
            right = random.random((count, companies, per_company)) < 0.5 + hard + ends + strengths
            sides.append(_scores(label, names, about, right.reshape(count, -1).astype(float)))
            accuracies.append(float(ends.mean()))
        yield Simulated(scores=(sides[0], sides[1]), policies=accuracies[0] - accuracies[1])


def _scores(label: str, names: list[str], about: dict[str, str], right: NDArray[np.float64]) -> Scores:
    means = right.mean(axis=0).tolist()
    each = [dict(zip(names, run, strict=True)) for run in right.tolist()]
    return Scores(label=label, shares=dict(zip(names, means, strict=True)), companies=about, runs=each)


def rates(found: Iterator[Simulated]) -> Rates:
    """Returns the shares of comparisons that are right and wrong."""
    counted = np.zeros(5)
    for each in found:
        # the second is subtracted from the first
        (one,) = compare_all(each.scores, baseline="b", level=_LEVEL)
        paired = one.paired
        of_methods = paired.about == "methods"
        counted += (
            1,
            paired.low <= 0 <= paired.high,
            of_methods and one.verdict == "shown",
            of_methods and paired.p_value < 1 - _LEVEL,
            paired.low <= each.policies <= paired.high,
        )
    shares = (counted[1:] / counted[0]).tolist()
    return Rates(covered=shares[0], false=shares[1], t_test=shares[2], policies=shares[3])


def main() -> int:
    """Simulates every design and prints the tables; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=4000)
    draws = parser.parse_args().draws
    print(f"{platform.platform()}, Python {platform.python_version()}, {draws} comparisons a row\n")
    _head("runs", "vary by, points", "companies", "questions", "coverage", "false verdicts", "of the t-test alone")
    met = True
    for runs in ((3, 3), (5, 5), (3, 5), (2, 2)):
        for spread in (*((one, one) for one in SPREADS), (0.07, 0.02)):
            for design in DESIGNS if runs == (3, 3) else DESIGNS[::2]:
                found = _row(runs, spread, design, draws)
                _line(found.covered, found.false, found.t_test)
                met &= runs != (3, 3) or (0.93 <= found.covered <= 0.97 and found.false <= 0.06)
    print()
    _head(
        *("runs", "vary by, points", "companies", "questions", "false verdicts on methods"),
        *("interval holds the difference of the two policies", "of the methods"),
    )
    for deviation in SPREADS:
        for design in DESIGNS:
            found = _row((1, 1), (deviation, deviation), design, draws)
            _line(found.false, found.policies, found.covered)
            met &= found.false == 0
    return 0 if met else 1


def _row(runs: tuple[int, int], spread: tuple[float, float], design: tuple[int, int], draws: int) -> Rates:
    companies, per_company = design
    seed = round(1000 * sum(spread)) + companies * per_company
    found = rates(simulate(draws, runs=runs, companies=companies, per_company=per_company, spread=spread, seed=seed))
    points = tuple(round(100 * one) for one in spread)
    print(f"| {_pair(runs)} | {_pair(points)} | {companies} | {companies * per_company} ", end="")
    return found


def _head(*columns: str) -> None:
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)


def _line(*shares: float) -> None:
    print("".join(f"| {100 * share:.1f} % " for share in shares) + "|", flush=True)


def _pair(values: tuple[int, int]) -> str:
    return str(values[0]) if values[0] == values[1] else f"{values[0]} and {values[1]}"


if __name__ == "__main__":
    sys.exit(main())
