"""An experiment's report in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from finqa_cli.evaluation.compare.markdown import cell as _cell
from finqa_cli.evaluation.compare.markdown import table as _table
from finqa_cli.experiments.answers import Answer, conclusion
from finqa_cli.experiments.attempt_figures import Estimated
from finqa_cli.experiments.experiment_plan import ExperimentPlan, differing_settings
from finqa_cli.experiments.experiment_report import ExperimentReport


def markdown(report: ExperimentReport) -> str:
    """The content of report.md."""
    plan, done = report.plan, len(report.done)
    parts = [
        f"# Experiment {_cell(plan.name)}",
        f"{done} of {len(plan.cells)} cells are done."
        + (f" Set by the environment: {_given(plan)}." if plan.given else ""),
        "## Questions",
        *(_question(question.ask, found) for question, found in zip(plan.questions, report.answers, strict=True)),
        "## Cells",
        _cells(report),
        "## Settings that differ",
        _settings(plan),
        *_comparisons(report),
        "## How to read this",
        _notes(),
    ]
    return "\n\n".join(parts) + "\n"


def _given(plan: ExperimentPlan) -> str:
    return ", ".join(f"{name}={_cell(value)}" for name, value in plan.given.items())


def _question(ask: str, found: Sequence[Answer]) -> str:
    headers = ["measure", "cells", "first", "second", "difference", "p Holm", "questions", "verdict"]
    rows = [
        [
            one.measure,
            f"{one.first} less {one.second}",
            *(("-" if value is None else f"{value:.3f}") for value in one.values),
            _interval(one.difference, signed=True),
            "-" if one.adjusted is None else f"{one.adjusted:.3g}",
            one.questions,
            f"{one.verdict}: {one.reason}" if one.reason else one.verdict,
        ]
        for one in found
    ]
    return f"### {_cell(ask)}\n\n{_cell(conclusion(found))}\n\n{_table(headers, rows)}"


def _cells(report: ExperimentReport) -> str:
    measures = list(report.plan.measures)
    rows: list[list[object]] = []
    for name in report.plan.cells:
        if (result := report.done.get(name)) is None:
            rows.append([name, "not done", *["-"] * len(measures), "-"])
            continue
        cost = result.evaluated.cost
        figures = [_interval(result.figures[measure]) for measure in measures]
        rows.append([name, "done", *figures, f"{cost.hours:.3g}" if cost else "-"])
    return _table(["cell", "state", *measures, "hours of training"], rows)


def _settings(plan: ExperimentPlan) -> str:
    rows = [
        [path, *("-" if value is None else value for value in found)]
        for path, found in differing_settings(plan).items()
    ]
    return _table(["setting", *plan.cells], rows)


def _comparisons(report: ExperimentReport) -> list[str]:
    if not report.comparisons:
        return []
    lines = [
        f"- {_cell(group or 'all cells')}: [{folder}/report.md]({folder}/report.md)"
        for group, folder in report.comparisons.items()
    ]
    return ["## Comparisons", "\n".join(lines)]


def _notes() -> str:
    return "\n".join(
        [
            "- Differences are paired: of both cells on the questions that both were graded on. Intervals are 95 %, by "
            "the delete-a-group jackknife over clusters of questions.",
            "- A difference is shown when its p-value, after Holm's correction among the answers to one question, is "
            "below 0.05. Better and worse are by the direction that the experiment file gives for the measure.",
            "- A calibration error (ECE) is biased upwards, the most where calibration is good, and no interval "
            "corrects that: differences in it are understated. Brier and other means have no such bias.",
            "- Every cell is one training run for each seed: the intervals are about questions, and with one seed "
            "nothing here says how another would end.",
            "- Episodes that ended in faults of infrastructure are in no number.",
        ]
    )


def _interval(one: Estimated | None, *, signed: bool = False) -> str:
    if one is None:
        return "-"
    form = "+.3f" if signed else ".3f"
    return f"{one.value:{form}} [{one.low:{form}}, {one.high:{form}}]"
