"""Research questions answered from evaluations: figures of attempts, and paired differences between cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from finqa_cli.contracts import Environment
from finqa_cli.errors import DataError
from finqa_cli.experiments.experiment_file import Measure, Question
from finqa_cli.experiments.experiment_plan import ExperimentPlan, PlannedCell
from finqa_cli.rollout.measures import flat
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.trajectory_records import recorded_trajectory
from finqa_cli.statistics import MALFORMED, holm
from finqa_cli.statistics.intervals import t_test
from finqa_cli.statistics.outcomes import is_correct
from finqa_cli.types import Rewards, Trajectory

LEVEL = 0.05
_AGAIN = "run the evaluation again: finqa eval TARGET"

MOST_PARTS = 60
"""Parts that the jackknife leaves out in turn; more would be slower and no better."""

Figure = Callable[[Sequence[Trajectory]], float | None]
"""Computes a number from some attempts; None where it is not defined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A figure with its 95 % interval; the p-value is of the figure being 0."""

    value: float
    low: float
    high: float
    p_value: float


def read_attempts(run: Path) -> list[Trajectory]:
    """Reads the attempts of a run of `finqa eval`, without token ids.

    Raises:
        DataError: The file is not there, or a record is malformed.
    """
    file = run / "trajectories.jsonl"
    try:
        return [recorded_trajectory(record) for record in read_jsonl(file)]
    except FileNotFoundError as error:
        raise DataError(f"{run} has no trajectories.jsonl.", remedy=_AGAIN) from error
    except MALFORMED as error:
        raise DataError(f"{file} is not as finqa writes it: {error!r}.", remedy=_AGAIN) from error


def figure(of: str, environment: Callable[[], Environment]) -> Figure:
    """Returns the figure that `Measure.of` names.

    Args:
        of: `accuracy`, `reward`, `components.NAME`, or a dotted name of what the environment measures.
        environment: Opens the environment, if the figure needs it.
    """
    if of == "accuracy":
        return lambda attempts: _mean([is_correct(each.components, each.total) for each in _rewards(attempts)])
    if of == "reward":
        return lambda attempts: _mean([each.total for each in _rewards(attempts)])
    if of.startswith("components."):
        name = of.removeprefix("components.")
        return lambda attempts: _mean([each.components[name] for each in _rewards(attempts) if name in each.components])
    measuring = environment()

    def measured(attempts: Sequence[Trajectory]) -> float | None:
        return flat(measuring.measure(attempts)).get(of)

    return measured


def jackknifed(calculate: Callable[[frozenset[str]], float | None], clusters: Sequence[str]) -> Estimated | None:
    """Estimates a figure with its standard error.

    Source: Kott 2001, "The delete-a-group jackknife".

    The clusters are divided into at most `MOST_PARTS` parts, each of which is left out once; the interval is Student's
    with one degree of freedom less than there are parts. For a mean over equal clusters that is the clustered standard
    error. A figure that is no mean may be biased besides, which its interval does not tell: chance alone makes a
    calibration error greater, the most where calibration is good. With 2,000 attempts and ten bins, a calibrated policy
    and one that is always sure differ by 0.478 on average instead of 0.5, and the interval holds 0.5 in 65 % of cases
    instead of 95 % (simulated); between equally calibrated ones a difference is shown in 0 to 2 %. So such differences
    are understated. A Brier score is a mean.

    Args:
        calculate: Computes the figure of the attempts at the questions of these clusters.
        clusters: The cluster of every attempt.

    Returns:
        None when there are fewer than two clusters, or the figure is not known of all parts.
    """
    known = sorted(set(clusters))
    count = min(len(known), MOST_PARTS)
    whole = calculate(frozenset(known))
    if count < 2 or whole is None:
        return None
    parts = [frozenset(known[place::count]) for place in range(count)]
    left = [calculate(frozenset(known) - part) for part in parts]
    values = [value for value in left if value is not None]
    if len(values) < count:
        return None
    center = math.fsum(values) / count
    error = math.sqrt((count - 1) / count * math.fsum((value - center) ** 2 for value in values))
    margin, p_value = t_test(whole, error, degrees=count - 1, clusters=count, level=1 - LEVEL)
    return Estimated(value=whole, low=whole - margin, high=whole + margin, p_value=p_value)


def graded(attempts: Sequence[Trajectory]) -> list[Trajectory]:
    """Keeps the attempts that have a reward and ended in no fault."""
    return [each for each in attempts if each.rewards is not None and not each.status.is_fault]


def _rewards(attempts: Sequence[Trajectory]) -> list[Rewards]:
    return [each.rewards for each in graded(attempts) if each.rewards is not None]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


Verdict = Literal["better", "worse", "not shown", "not known"]

Arms = Mapping[str, Sequence[Sequence[Trajectory]]]
"""Label of a cell -> the attempts of each of its seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One pair of cells by one measure.

    Attributes:
        measure: Name of the measure.
        first: Label of the first cell.
        second: Label of the second cell.
        values: Values of both, on the questions that both were graded on; None where not known.
        difference: First less second; None where it or its error is not known.
        questions: That both were graded on.
        seeds: Number of seeds of each.
        adjusted: Holm's p-value among the answers to the same question; None without a difference.
        verdict: Whether the first is shown to be better or worse, at 5 %.
        reason: Why the verdict is `not known`; otherwise empty.
    """

    measure: str
    first: str
    second: str
    values: tuple[float | None, float | None]
    difference: Estimated | None
    questions: int
    seeds: tuple[int, int]
    adjusted: float | None
    verdict: Verdict
    reason: str


def answers(plan: ExperimentPlan, question: Question, arms: Arms, figures: Mapping[str, Figure]) -> list[Answer]:
    """Answers a question: one answer for each of its pairs of cells and measures."""
    found = [
        _compared(first, second, measure, arms, figures[measure])
        for first, second in _pairs(plan, question)
        for measure in question.measures
    ]
    tested = {str(place): one.difference.p_value for place, one in enumerate(found) if one.difference is not None}
    adjusted = holm(tested)
    return [_judged(one, adjusted.get(str(place)), plan.measures[one.measure]) for place, one in enumerate(found)]


def conclusion(found: Sequence[Answer]) -> str:
    """Sums up answers in words."""
    said = []
    for verdict, words in (
        ("better", "shown to be better"),
        ("worse", "shown to be worse"),
        ("not shown", "no difference is shown"),
        ("not known", "not known yet"),
    ):
        members = [f"{one.measure} of {one.first} against {one.second}" for one in found if one.verdict == verdict]
        if members:
            said.append(f"{words}: {', '.join(members)}")
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}." if text else "There is nothing to compare."


def _pairs(plan: ExperimentPlan, question: Question) -> Iterator[tuple[str, str]]:
    """Labels of two cells that differ on the question's axis alone, pair by pair."""
    cells: dict[str, PlannedCell] = {cell.label: cell for cell in plan.cells.values()}
    for first, second in question.pairs:
        for label, cell in cells.items():
            if cell.choices[question.axis] == first:
                wanted = {**cell.choices, question.axis: second}
                yield label, next(name for name, other in cells.items() if other.choices == wanted)


def _compared(first: str, second: str, measure: str, arms: Arms, figure: Figure) -> Answer:
    runs = [[graded(run) for run in arms.get(label, ())] for label in (first, second)]
    asked = [set.intersection(*({each.task.id for each in run} for run in arm)) if arm else set() for arm in runs]
    common = asked[0] & asked[1]
    kept = [[[each for each in run if each.task.id in common] for run in arm] for arm in runs]
    clusters = [each.task.cluster for arm in kept for run in arm for each in run]

    def value(place: int, wanted: frozenset[str]) -> float | None:
        found = [figure([each for each in run if each.task.cluster in wanted]) for run in kept[place]]
        known = [number for number in found if number is not None]
        return sum(known) / len(known) if known and len(known) == len(found) else None

    def difference(wanted: frozenset[str]) -> float | None:
        one, other = value(0, wanted), value(1, wanted)
        return None if one is None or other is None else one - other

    everything = frozenset(clusters)
    values = value(0, everything), value(1, everything)
    estimated = jackknifed(difference, clusters) if common else None
    return Answer(
        measure=measure,
        first=first,
        second=second,
        values=values,
        difference=estimated,
        questions=len(common),
        seeds=(len(runs[0]), len(runs[1])),
        adjusted=None,
        verdict="not known",
        reason="" if estimated else _reason(first, second, arms, values, len(common)),
    )


def _reason(first: str, second: str, arms: Arms, values: tuple[float | None, float | None], common: int) -> str:
    if missing := [label for label in (first, second) if not arms.get(label)]:
        return f"not enough runs: {' and '.join(missing)} is not done"
    if not common:
        return "they were graded on no question alike"
    unknown = [label for label, value in zip((first, second), values, strict=True) if value is None]
    return f"not measured in {' and '.join(unknown)}" if unknown else "too few questions for an interval"


def _judged(one: Answer, adjusted: float | None, measure: Measure) -> Answer:
    verdict: Verdict = "not known"
    if one.difference is not None and adjusted is not None:
        improved = (one.difference.value > 0) == (measure.better == "higher")
        verdict = ("better" if improved else "worse") if adjusted < LEVEL else "not shown"
    return replace(one, adjusted=adjusted, verdict=verdict)
