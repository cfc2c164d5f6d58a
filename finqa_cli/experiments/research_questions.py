"""Answers research questions from evaluations: figures of attempts, and paired differences between cells."""

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
from finqa_cli.statistics import MALFORMED, ONE_RUN, crossed_error, holm, spread_of
from finqa_cli.statistics.intervals import t_test
from finqa_cli.statistics.outcomes import is_correct
from finqa_cli.types import Rewards, Trajectory

LEVEL = 0.05

MOST_PARTS = 60
"""Largest number of parts that the jackknife leaves out in turn; more would be slower and not more accurate."""

Figure = Callable[[Sequence[Trajectory]], float | None]
"""Computes a number from attempts; None if it is not defined for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A figure with its 95 % interval; `p_value` is for the hypothesis that the figure is 0."""

    value: float
    low: float
    high: float
    p_value: float


def read_attempts(run: Path) -> list[Trajectory]:
    """Reads the attempts of the evaluation of a cell, without token ids.

    Args:
        run: Folder of the evaluation, `EXPERIMENT/evals/CELL`.

    Raises:
        DataError: A record is malformed, or of another version of finqa.
    """
    file = run / "trajectories.jsonl"
    try:
        return [recorded_trajectory(record) for record in read_jsonl(file)]
    except MALFORMED as error:
        raise DataError(
            f"{file} does not have the format of this version of finqa: {error!r}.",
            remedy=f"finqa experiment run --resume {run.parents[1]} --redo evals/{run.name}",
        ) from error


def figure(of: str, environment: Callable[[], Environment]) -> Figure:
    """Returns the figure that `Measure.of` names.

    Args:
        of: `accuracy`, `reward`, `components.NAME`, or the dotted name of a figure that the environment measures.
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
    """Estimates a figure with its interval by the delete-a-group jackknife.

    Source: Kott 2001, "The delete-a-group jackknife".

    The clusters are divided into at most `MOST_PARTS` parts, each of which is left out once. The interval is that of
    Student's t with one degree of freedom less than there are parts. For a mean over equal clusters, the standard error
    is the clustered one.

    A figure that is not a mean may also be biased, which its interval does not show. Chance increases a calibration
    error, most of all if calibration is good. In a simulation with 2,000 attempts and ten bins, a calibrated policy and
    one that is always sure differ by 0.478 on average instead of 0.5, and the interval contains 0.5 in 65 % of cases
    instead of 95 %. Between equally calibrated policies a difference is shown in 0 to 2 % of cases. Differences in
    calibration are therefore understated. A Brier score is a mean.

    Args:
        calculate: Computes the figure of the attempts at the questions of these clusters.
        clusters: The cluster of every attempt.

    Returns:
        None if there are fewer than two clusters, or the figure is undefined for some part.
    """
    values = [calculate(kept) for kept in _parts_kept(clusters)]
    known = [value for value in values if value is not None]
    if len(known) < len(values) or len(known) < 3:
        return None
    return _estimated(known[0], _error(known), len(known) - 2, parts=len(known) - 1)


def crossed(figure: Figure, arms: Sequence[Sequence[Sequence[Trajectory]]]) -> Estimated | None:
    """Estimates the mean of a figure over the runs of a cell, or the difference of the means of two cells.

    The error over clusters is that of `jackknifed`. With several runs per cell, it is combined with the variance
    between runs as in `finqa_cli.statistics.crossed`; the noise of a run is the jackknife error of its deviation from
    the mean.

    Args:
        figure: Computes the figure of one run.
        arms: The attempts of each run of one cell, or of two cells; the second is subtracted.

    Returns:
        None if there are fewer than two clusters, or the figure is undefined for some part of a run.
    """
    kept = _parts_kept([each.task.cluster for arm in arms for run in arm for each in run])
    # tables[cell][run][part]; part 0 is the figure of all clusters
    tables = [
        [[figure([each for each in run if each.task.cluster in part]) for part in kept] for run in arm] for arm in arms
    ]
    known = [[[value for value in run if value is not None] for run in table] for table in tables]
    if len(kept) < 3 or any(len(run) < len(kept) for table in known for run in table):
        return None
    parts = len(kept) - 1
    means = [[math.fsum(values) / len(values) for values in zip(*table, strict=True)] for table in known]
    values = means[0] if len(means) == 1 else [one - other for one, other in zip(*means, strict=True)]
    spreads = [
        spread_of(
            [run[0] for run in table],
            [_error([value - middle for value, middle in zip(run, mean, strict=True)]) for run in table],
            parts - 1,
        )
        if len(table) > 1
        else ONE_RUN
        for table, mean in zip(known, means, strict=True)
    ]
    error, degrees = crossed_error(_error(values), parts - 1, spreads)
    return _estimated(values[0], error, degrees, parts=parts)


def _parts_kept(clusters: Sequence[str]) -> list[frozenset[str]]:
    """Returns the set of all clusters, then for each part the set of all clusters except those of the part."""
    known = sorted(set(clusters))
    count = min(len(known), MOST_PARTS)
    everything = frozenset(known)
    return [everything, *(everything - frozenset(known[place::count]) for place in range(count))]


def _error(values: Sequence[float]) -> float:
    """Returns the jackknife standard error; `values` are the figure of everything, then that without each part."""
    left = values[1:]
    center = math.fsum(left) / len(left)
    return math.sqrt((len(left) - 1) / len(left) * math.fsum((value - center) ** 2 for value in left))


def _estimated(value: float, error: float, degrees: float, *, parts: int) -> Estimated:
    margin, p_value = t_test(value, error, degrees=degrees, clusters=parts, level=1 - LEVEL)
    return Estimated(value=value, low=value - margin, high=value + margin, p_value=p_value)


def graded(attempts: Sequence[Trajectory]) -> list[Trajectory]:
    """Returns the attempts that have a reward and did not end in a fault."""
    return [each for each in attempts if each.rewards is not None and not each.status.is_fault]


def _rewards(attempts: Sequence[Trajectory]) -> list[Rewards]:
    return [each.rewards for each in graded(attempts) if each.rewards is not None]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


Verdict = Literal["better", "worse", "policies differ", "not shown", "not known"]
"""If one of two cells has a single run, a shown difference is about these policies and not about the settings."""

Arms = Mapping[str, Sequence[Sequence[Trajectory]]]
"""Label of a cell -> the attempts of each of its seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One pair of cells by one measure.

    Attributes:
        measure: Name of the measure.
        first: Label of the first cell.
        second: Label of the second cell.
        values: Values of both, on the questions that were graded for both; None if unknown.
        difference: First minus second; None if it or its error is unknown.
        questions: Number of questions that were graded for both.
        clusters: Number of clusters of these questions, such as companies.
        seeds: Number of runs of each cell, one per seed.
        adjusted: p-value after Holm's correction among the answers to the same question; None without a difference.
        verdict: Whether the first is shown to be better or worse, at a level of 5 %; see `Verdict`.
        reason: Why the verdict is `not known`; otherwise empty.
    """

    measure: str
    first: str
    second: str
    values: tuple[float | None, float | None]
    difference: Estimated | None
    questions: int
    clusters: int
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
    """Returns a sentence that summarizes the answers to a question."""
    said = []
    for verdict, words in (
        ("better", "shown to be better"),
        ("worse", "shown to be worse"),
        ("policies differ", "these two policies differ; one run each says nothing about the methods"),
        ("not shown", "no difference is shown"),
        ("not known", "not known yet"),
    ):
        members = [f"{one.measure} of {one.first} against {one.second}" for one in found if one.verdict == verdict]
        if members:
            said.append(f"{words}: {', '.join(members)}")
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}." if text else "There is nothing to compare."


def _pairs(plan: ExperimentPlan, question: Question) -> Iterator[tuple[str, str]]:
    """Yields the labels of each pair of cells that differ on the axis of the question only."""
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

    def value(place: int) -> float | None:
        found = [figure(run) for run in kept[place]]
        known = [number for number in found if number is not None]
        return sum(known) / len(known) if known and len(known) == len(found) else None

    values = value(0), value(1)
    estimated = crossed(figure, kept) if common else None
    return Answer(
        measure=measure,
        first=first,
        second=second,
        values=values,
        difference=estimated,
        questions=len(common),
        clusters=len({each.task.cluster for arm in kept for run in arm for each in run}),
        seeds=(len(runs[0]), len(runs[1])),
        adjusted=None,
        verdict="not known",
        reason="" if estimated else _reason(first, second, arms, values, len(common)),
    )


def _reason(first: str, second: str, arms: Arms, values: tuple[float | None, float | None], common: int) -> str:
    if missing := [label for label in (first, second) if not arms.get(label)]:
        return f"not enough runs: {' and '.join(missing)} is not done"
    if not common:
        return "they have no graded question in common"
    unknown = [label for label, value in zip((first, second), values, strict=True) if value is None]
    return f"not measured in {' and '.join(unknown)}" if unknown else "too few questions for an interval"


def _judged(one: Answer, adjusted: float | None, measure: Measure) -> Answer:
    verdict: Verdict = "not known"
    if one.difference is not None and adjusted is not None:
        improved = (one.difference.value > 0) == (measure.better == "higher")
        shown: Verdict = "policies differ" if min(one.seeds) < 2 else "better" if improved else "worse"
        verdict = shown if adjusted < LEVEL else "not shown"
    return replace(one, adjusted=adjusted, verdict=verdict)
