"""Research questions answered from numbers: paired differences between cells, with intervals. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from finqa_cli.experiments.attempt_figures import Estimated, Figure, graded, jackknifed
from finqa_cli.experiments.experiment_file import Measure, Question
from finqa_cli.experiments.experiment_plan import ExperimentPlan, PlannedCell
from finqa_cli.statistics.paired import holm
from finqa_cli.types import Trajectory

LEVEL = 0.05

Verdict = Literal["better", "worse", "not shown", "not known"]

Arms = Mapping[str, Sequence[Sequence[Trajectory]]]
"""Label of a cell -> the attempts of each of its seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One pair of cells by one measure.

    Attributes:
        measure: Its name.
        first: Label of a cell.
        second: Label of the cell that it is compared with.
        values: Of both, on the questions that both were graded on; None where not known.
        difference: First less second; None where it or its error is not known.
        questions: That both were graded on.
        seeds: Of each.
        adjusted: Holm's p-value among the answers to the same question; None without a difference.
        verdict: Whether the first is shown to be better or worse, at 5 %.
        reason: Why nothing is known; empty where something is.
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
    """All answers to a question that its pairs of cells give."""
    found = [
        _compared(first, second, measure, arms, figures[measure])
        for first, second in _pairs(plan, question)
        for measure in question.measures
    ]
    tested = {str(place): one.difference.p_value for place, one in enumerate(found) if one.difference is not None}
    adjusted = holm(tested)
    return [_judged(one, adjusted.get(str(place)), plan.measures[one.measure]) for place, one in enumerate(found)]


def conclusion(found: Sequence[Answer]) -> str:
    """What the answers come to, in words."""
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
