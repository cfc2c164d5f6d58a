"""`finqa experiment`: matrices of training runs with research questions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli import logs
from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, plain_table, plural
from finqa_cli.errors import UsageError
from finqa_cli.experiments import experiment_run as workflow
from finqa_cli.experiments.experiment_file import read_experiment
from finqa_cli.experiments.experiment_plan import (
    Estimate,
    ExperimentPlan,
    chosen_cells,
    differing_settings,
    estimates,
    plan_experiment,
    prepare_steps,
    row_warnings,
    steps_of,
    total,
)
from finqa_cli.experiments.experiment_report import document as report_document
from finqa_cli.experiments.research_questions import conclusion
from finqa_cli.experiments.step_runner import return_to

app = CommandApp("Run a matrix of experiments and answer its research questions.", epilog=EXIT_CODES)

_SOURCES = {"measured": "measured in this folder", "given": "from the file", "none": "none, so only counts"}

FREE_ON_RESUME = ("only", "redo", "keep_going", "dry_run")


@app.command(epilog=f"Example: finqa experiment run financial_qa --dry-run. {EXIT_CODES}")
@offers(general=("assign", "as_json", "quiet"))
def run(
    line: CommandLine,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="An experiment file, or the name of an included one: financial_qa, financial_qa_tiny.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Output folder. If it already contains this experiment, the experiment is resumed.",
            show_default="outputs/NAME of the experiment",
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Folder of an experiment to resume, with its own settings.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="CELL", help="Cells by name or pattern; repeatable."),
    ] = None,
    redo: Annotated[
        str, typer.Option("--redo", metavar="CELL", help="Cell to run again; its old results are moved aside.")
    ] = "",
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Continue with the other cells if one fails.")
    ] = False,
    seeds: Annotated[
        str,
        typer.Option(
            "--seeds", metavar="N,N", help="Train every cell with each of these seeds.", show_default="the file's"
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan with estimates of time and cost, and start nothing.")
    ] = False,
) -> None:
    """Train and evaluate every cell of an experiment, compare them, and answer its questions from the numbers.

    Every step is a finqa command in a folder below the output folder; what is done is not done again, so the same
    command continues after a failure or a stop. Environment variables that the file names replace its defaults.
    """
    if dry_run and (redo or keep_going):
        raise UsageError(
            "--dry-run starts nothing: --redo and --keep-going have no effect.",
            remedy="leave out --redo and --keep-going",
        )
    plan, folder = _wanted(line)
    chosen = chosen_cells(plan.cells, only or ())
    if dry_run:
        document = plan_document(plan, folder, chosen)
        emit(document, as_json=line.as_json, text=lambda: plan_text(document, plan, folder))
        return
    result = workflow.run_experiment(
        plan,
        folder,
        only=only or (),
        redo=redo,
        keep_going=keep_going,
        show=lambda text: None if line.as_json or line.quiet else print(text, file=sys.stderr, flush=True),
    )
    emit(_document(result), as_json=line.as_json, text=lambda: _text(result))


def _wanted(line: CommandLine) -> tuple[ExperimentPlan, Path]:
    """Return the plan and its folder."""
    given = line.context.params
    if (resume := given["resume"]) is not None:
        line.check_free(resume, command="experiment run", free=FREE_ON_RESUME)
        logs.configure()
        run = return_to(resume, line.note)
        return workflow.stored_plan(run), run
    if given["file"] is None:
        raise UsageError("No experiment is named.", remedy="finqa experiment run financial_qa --dry-run")
    document, read = read_experiment(given["file"])
    plan, folder = plan_experiment(
        document,
        read,
        environment=os.environ,
        resolve=lambda files, settings: line.load(settings, files=list(files), quiet=True),
        output=given["output"],
        only=given["only"] or (),
        seeds=_numbers(given["seeds"]),
    )
    plan = workflow.continued_plan(plan, folder)
    workflow.check_cells(plan, given["only"] or ())
    return plan, folder


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError as error:
        raise UsageError(f"--seeds must be whole numbers, not {text!r}.", remedy="--seeds 0,1,2") from error
    if len(set(numbers)) < len(numbers) or any(number < 0 for number in numbers):
        raise UsageError(f"--seeds {text}: seeds must be different natural numbers.", remedy="--seeds 0,1,2")
    return numbers


def _document(result: workflow.ExperimentResult) -> dict[str, Any]:
    return {
        "run": str(result.run),
        "states": {name: in_one_word(pair) for name, pair in result.states.items()},
        "report": str(result.run / "report.md") if result.report else None,
        **(report_document(result.report) if result.report else {}),
    }


def _text(result: workflow.ExperimentResult) -> str:
    lines = [plain_table(("cell", "state"), [(name, in_one_word(pair)) for name, pair in result.states.items()])]
    if (report := result.report) is not None:
        lines += [
            f"\n{question.ask}\n  {conclusion(found)}"
            for question, found in zip(report.plan.questions, report.answers, strict=True)
        ]
        lines.append(f"\nReport: {result.run / 'report.md'}")
    if any(in_one_word(pair) != "done" for pair in result.states.values()):
        lines.append(f"Next: {workflow.EXPERIMENT.resume} {result.run}")
    return "\n".join(lines)


def plan_document(plan: ExperimentPlan, folder: Path, chosen: Sequence[str]) -> dict[str, Any]:
    """Return the `--json` form of a plan; nothing is started or written.

    Raises:
        ConfigError: The folder was changed by hand.
    """
    states, found = workflow.states_of(plan, folder), estimates(plan, folder)
    return {
        "experiment": plan.name,
        "file": plan.file,
        "output": str(folder),
        "given": plan.given,
        "prepare": [step.line for step in prepare_steps(plan, folder)],
        "cells": {
            name: {
                "choices": plan.cells[name].choices,
                "state": in_one_word(states[name]),
                "estimate": asdict(found[name]),
                "commands": [step.line for step in steps_of(plan, name, folder)],
            }
            for name in chosen
        },
        "differing_settings": _settings(plan, chosen),
        "questions": [question.model_dump(mode="json") for question in plan.questions],
        "hours": total({name: found[name] for name in chosen}),
        "currency": "USD",
        "warnings": row_warnings(plan, chosen),
        "reference": plan.reference,
    }


def plan_text(document: Mapping[str, Any], plan: ExperimentPlan, folder: Path) -> str:
    """Return the document of a plan as text."""
    found, chosen = estimates(plan, folder), list(document["cells"])
    given = ", ".join(f"{name}={value}" for name, value in plan.given.items())
    headers = ("cell", "state", "iterations", "attempts", "tokens", "time", "GPU-hours", "cost, USD")
    rows = [(name, document["cells"][name]["state"], *_estimated(found[name])) for name in chosen]
    sources = sorted({found[name].source for name in chosen})
    hours = document["hours"]
    questions = [f"  {question.ask} ({', '.join(question.measures)})" for question in plan.questions]
    cells = document["cells"].values()
    commands = [f"  {line}" for line in (*document["prepare"], *(line for cell in cells for line in cell["commands"]))]
    labels = {plan.cells[name].label for name in chosen}
    runs = "" if len(labels) == len(chosen) else f", {len(chosen)} runs over their seeds,"
    parts = [
        f"Experiment {plan.name} ({plan.file}): {plural(len(labels), 'cell')}{runs} in {folder}"
        + (f"; set by the environment: {given}" if given else ""),
        plain_table(headers, rows),
        f"One after the other: {_span(hours, _time) if hours else 'time not known'}. "
        f"Rates: {', '.join(_SOURCES[source] for source in sources)}."
        + f"\n{_costs([found[name] for name in chosen])}"
        + (f"\nReference: {plan.reference}" if plan.reference else ""),
        *(["\n".join(f"warning: {line}" for line in document["warnings"])] if document["warnings"] else []),
        "Settings that differ:\n" + _differing(document["differing_settings"], chosen),
        "\n".join(["Questions:", *questions]),
        "\n".join(["Commands:", *commands]),
    ]
    return "\n\n".join(parts)


def in_one_word(pair: tuple[str, str]) -> str:
    """Return the state of a cell whose training and evaluation have these states."""
    return pair[0] if pair[0] == pair[1] else "begun"


def _settings(plan: ExperimentPlan, chosen: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return dotted path -> cell -> value, for settings that differ between cells of the plan."""
    values = differing_settings(plan)
    return {
        path: {name: value for name, value in zip(plan.cells, found, strict=True) if name in chosen}
        for path, found in values.items()
    }


def _differing(settings: Mapping[str, Mapping[str, Any]], chosen: Sequence[str]) -> str:
    return plain_table(
        ("setting", *chosen), [(path, *(found[name] for name in chosen)) for path, found in settings.items()]
    )


def _estimated(one: Estimate) -> tuple[str, ...]:
    return (
        f"{one.iterations:,}",
        f"{one.attempts:,}" + (f" + {one.evaluated:,} evaluated" if one.evaluated else ""),
        f"{one.tokens / 1e6:,.1f} M" if one.tokens is not None else "-",
        _span(one.hours, _time),
        _span(one.gpu_hours, lambda value: f"{value:,.1f}"),
        _span(one.cost, lambda value: f"{value:,.0f}"),
    )


def _costs(found: Sequence[Estimate]) -> str:
    """Return how costs are calculated, or what is missing for it."""
    prices = sorted({one.gpu_hour_price for one in found if one.gpu_hour_price is not None})
    if not prices:
        return "Cost: not known, because the file has no gpu_hour_price (USD for one GPU and hour) under [rates]."
    shown = " or ".join(f"{price:g}" for price in prices)
    if all(one.cost is None for one in found):
        return f"Cost: not known, because the time is not known; a GPU-hour costs {shown} USD."
    return f"Cost: GPU-hours at {shown} USD each, as set in the file; other costs are not included."


def _span(pair: tuple[float, float] | None, shown: Callable[[float], str]) -> str:
    if pair is None:
        return "-"
    low, high = shown(pair[0]), shown(pair[1])
    return low if low == high else f"{low} to {high}"


def _time(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:.1f} d"
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"
