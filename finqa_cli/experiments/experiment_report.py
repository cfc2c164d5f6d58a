"""The report of an experiment: cells side by side, questions answered, a comparison for each group of cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Environment
from finqa_cli.deletion import delete
from finqa_cli.evaluation.compare.comparison import compare
from finqa_cli.evaluation.compare.comparison_report import write_comparison
from finqa_cli.evaluation.compare.evaluated_runs import EvaluatedRun, load_run
from finqa_cli.evaluation.markdown import render
from finqa_cli.experiments.experiment_plan import ExperimentPlan, differing_settings, settings_of
from finqa_cli.experiments.research_questions import (
    Answer,
    Estimated,
    Figure,
    answers,
    conclusion,
    crossed,
    figure,
    graded,
    jackknifed,
    read_attempts,
)
from finqa_cli.runs.durable_files import storage, write_json
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.types import Trajectory
from finqa_cli.wiring.build import open_environment

COMPARISON = "comparison"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A cell that is done.

    Attributes:
        label: Label of the cell.
        seed: Seed of its training.
        figures: Measure -> value with an interval; None if it is unknown.
        questions: Number of questions that were graded.
        clusters: Number of clusters of these questions, such as companies.
        evaluated: The evaluation, with the cost of training.
    """

    label: str
    seed: int
    figures: Mapping[str, Estimated | None]
    questions: int
    clusters: int
    evaluated: EvaluatedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodResult:
    """Result of a cell over those of its seeds that are done.

    Attributes:
        seeds: Seeds of the runs that are done.
        planned: Number of seeds in the plan.
        figures: Measure -> mean over the runs, on the questions that were graded in all of them, with an interval over
            runs and clusters; None if it is unknown.
        questions: Number of these questions.
        clusters: Number of clusters of these questions, such as companies.
    """

    seeds: Sequence[int]
    planned: int
    figures: Mapping[str, Estimated | None]
    questions: int
    clusters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentReport:
    """Results of the cells that are done.

    Attributes:
        plan: Plan of the experiment.
        done: Results by name of the cell and seed.
        methods: Label of a cell with a finished run -> result over its seeds.
        answers: Answers to each question of the plan, in order of the questions.
        comparisons: Group -> folder of its comparison, relative to the folder of the experiment.
    """

    plan: ExperimentPlan
    done: Mapping[str, CellResult]
    methods: Mapping[str, MethodResult]
    answers: Sequence[Sequence[Answer]]
    comparisons: Mapping[str, str]


def make_report(plan: ExperimentPlan, run: Path, done: Sequence[str], *, plots: bool) -> ExperimentReport:
    """Reads the evaluations of the cells that are done, answers the questions and writes the comparisons again.

    Raises:
        DataError: An evaluation is damaged, or cells of one group cannot be compared.
    """
    attempts = {name: read_attempts(run / "evals" / name) for name in done}
    figures = _figures(plan)
    results = {name: _result(plan, run, name, attempts[name], figures) for name in done}
    arms: dict[str, list[list[Trajectory]]] = defaultdict(list)
    for name in done:
        arms[plan.cells[name].label].append(attempts[name])
    return ExperimentReport(
        plan=plan,
        done=results,
        methods={label: _method(plan, label, runs, results, figures) for label, runs in arms.items()},
        answers=[answers(plan, question, arms, figures) for question in plan.questions],
        comparisons=_compare(plan, run, done, plots=plots),
    )


def write_report(report: ExperimentReport, run: Path) -> None:
    """Writes report.md and report.json.

    Raises:
        StorageError: A file cannot be written.
    """
    write_json(run / "report.json", document(report))
    with storage(run / "report.md"):
        (run / "report.md").write_text(markdown(report), encoding="utf-8")


def markdown(report: ExperimentReport) -> str:
    """Returns the content of report.md."""
    return render(
        Path(__file__).with_name("experiment.md.j2"),
        plan=report.plan,
        done=report.done,
        methods=report.methods,
        several_seeds=any(method.planned > 1 for method in report.methods.values()),
        questions=list(zip(report.plan.questions, report.answers, strict=True)),
        conclusion=conclusion,
        comparisons=report.comparisons,
        differing=[
            [path, *("-" if value is None else value for value in values)]
            for path, values in differing_settings(report.plan).items()
        ],
    )


def document(report: ExperimentReport) -> dict[str, Any]:
    """Returns the report as JSON values."""
    return {
        "experiment": report.plan.name,
        "cells": {name: _cell(report, name) for name in report.plan.cells},
        "methods": {label: asdict(method) for label, method in report.methods.items()},
        "questions": [
            {"name": question.name, "ask": question.ask, "answers": [asdict(one) for one in found]}
            for question, found in zip(report.plan.questions, report.answers, strict=True)
        ],
        "comparisons": dict(report.comparisons),
    }


def _figures(plan: ExperimentPlan) -> dict[str, Figure]:
    """Returns the figures of the plan's measures. If any needs the environment, the first cell's is opened, once."""
    opened: list[Environment] = []

    def environment() -> Environment:
        if not opened:
            first = next(iter(plan.cells.values()))
            opened.append(open_environment(settings_of(first), NullReporter()))
        return opened[0]

    return {name: figure(measure.of, environment) for name, measure in plan.measures.items()}


def _result(
    plan: ExperimentPlan, run: Path, name: str, attempts: Sequence[Trajectory], figures: Mapping[str, Figure]
) -> CellResult:
    evaluated = load_run(run / "evals" / name)
    clusters = [each.task.cluster for each in attempts]

    def of(measure: str) -> Estimated | None:
        one = figures[measure]
        found = jackknifed(lambda kept: one([each for each in attempts if each.task.cluster in kept]), clusters)
        return _bounded(found, plan.measures[measure].of)

    tasks = [each.task for each in graded(attempts)]
    return CellResult(
        label=plan.cells[name].label,
        seed=evaluated.seed,
        figures={measure: of(measure) for measure in figures},
        questions=len({task.id for task in tasks}),
        clusters=len({task.cluster for task in tasks}),
        evaluated=evaluated,
    )


def _method(
    plan: ExperimentPlan,
    label: str,
    runs: Sequence[Sequence[Trajectory]],
    results: Mapping[str, CellResult],
    figures: Mapping[str, Figure],
) -> MethodResult:
    scored = [graded(run) for run in runs]
    common = set.intersection(*({each.task.id for each in run} for run in scored))
    kept = [[each for each in run if each.task.id in common] for run in scored]
    return MethodResult(
        seeds=[result.seed for result in results.values() if result.label == label],
        planned=sum(cell.label == label for cell in plan.cells.values()),
        figures={
            measure: _bounded(crossed(one, [kept]), plan.measures[measure].of) if common else None
            for measure, one in figures.items()
        },
        questions=len(common),
        clusters=len({each.task.cluster for run in kept for each in run}),
    )


def _bounded(found: Estimated | None, of: str) -> Estimated | None:
    """Keeps the interval of an accuracy inside 0 to 1."""
    if found is None or of != "accuracy":
        return found
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))


def _compare(plan: ExperimentPlan, run: Path, done: Sequence[str], *, plots: bool) -> dict[str, str]:
    """Writes a comparison for each group of two or more cells and returns the folders; earlier ones are deleted."""
    delete(run / COMPARISON, within=run)
    groups: dict[str, list[str]] = defaultdict(list)
    for name in done:
        groups[plan.cells[name].group].append(name)
    written = {}
    for group, names in groups.items():
        labels = list(dict.fromkeys(plan.cells[name].label for name in names))
        if len(labels) > 1:
            folder = f"{COMPARISON}/{group}".rstrip("/")
            named = [f"{plan.cells[name].label}={run / 'evals' / name}" for name in names]
            write_comparison(compare(named, baseline=labels[0]), run / folder, plots=plots)
            written[group] = folder
    return written


def _cell(report: ExperimentReport, name: str) -> dict[str, Any]:
    cell, result = report.plan.cells[name], report.done.get(name)
    facts: dict[str, Any] = {"label": cell.label, "choices": cell.choices, "done": result is not None}
    if result is None:
        return facts
    cost = result.evaluated.cost
    return {
        **facts,
        "seed": result.seed,
        "questions": result.questions,
        "clusters": result.clusters,
        "run": f"runs/{name}",
        "figures": {measure: asdict(one) if one else None for measure, one in result.figures.items()},
        "training_hours": cost.hours if cost else None,
        "training_sampled_tokens": cost.sampled_tokens if cost else None,
    }
