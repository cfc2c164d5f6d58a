"""`finqa experiment`: matrices of training runs with research questions."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli import logs
from finqa_cli.commands.shared import options
from finqa_cli.commands.shared.experiment_output import in_one_word, plan_document, plan_text
from finqa_cli.commands.shared.output import emit, plain_table
from finqa_cli.commands.shared.resume import only_free
from finqa_cli.errors import UsageError
from finqa_cli.experiments import experiment_run as workflow
from finqa_cli.experiments.experiment_file import read_experiment
from finqa_cli.experiments.experiment_plan import ExperimentPlan, chosen_cells, plan_experiment
from finqa_cli.experiments.experiment_report import document as report_document
from finqa_cli.experiments.research_questions import conclusion
from finqa_cli.experiments.step_settings import check_recorded
from finqa_cli.settings import Loaded

app = typer.Typer(
    help="Run a matrix of experiments and answer its research questions.",
    epilog=options.EXIT_CODES,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)

FREE_ON_RESUME = ("resume", "only", "redo", "keep_going", "dry_run", "as_json", "quiet")


@app.callback()
def _group() -> None: ...


@app.command(epilog=f"Example: finqa experiment run financial_qa --dry-run. {options.EXIT_CODES}")
def run(
    ctx: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="An experiment file, or the name of one that ships with finqa: financial_qa, financial_qa_tiny.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Folder; one that holds this experiment already is gone on with.",
            show_default="outputs/NAME of the experiment",
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the experiment in this folder, with its own settings.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="CELL", help="Only these cells, by name or pattern; repeatable."),
    ] = None,
    redo: Annotated[
        str, typer.Option("--redo", metavar="CELL", help="Do this cell again; what it had is set aside.")
    ] = "",
    keep_going: Annotated[bool, typer.Option("--keep-going", help="When a cell fails, go on with the others.")] = False,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N,N", help="Train every cell with each.", show_default="the file's")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan with estimates of time and cost, and start nothing.")
    ] = False,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train and evaluate every cell of an experiment, compare them, and answer its questions from the numbers.

    Every step is a finqa command in a folder below the output folder; what is done is not done again, so the same
    command goes on after a failure or a stop. Environment variables that the file names replace its defaults.
    """
    if dry_run and (redo or keep_going):
        raise UsageError("--dry-run starts nothing: --redo and --keep-going have no effect.", remedy="leave them out")
    plan, folder = _wanted(ctx)
    chosen = chosen_cells(plan.cells, only or ())
    if dry_run:
        document = plan_document(plan, folder, chosen)
        emit(document, as_json=as_json, text=lambda: plan_text(document, plan, folder))
        return
    result = workflow.run_experiment(
        plan,
        folder,
        only=only or (),
        redo=redo,
        keep_going=keep_going,
        show=lambda line: None if as_json or quiet else print(line, file=sys.stderr, flush=True),
    )
    emit(_document(result), as_json=as_json, text=lambda: _text(result))


def _wanted(ctx: typer.Context) -> tuple[ExperimentPlan, Path]:
    """The plan and its folder."""
    given = ctx.params
    if (resume := given["resume"]) is not None:
        only_free(ctx, resume, command="experiment run", free=FREE_ON_RESUME)
        logs.configure()
        return workflow.stored_plan(resume), resume
    if given["file"] is None:
        raise UsageError("Say which experiment.", remedy="finqa experiment run financial_qa --dry-run")
    document, read = read_experiment(given["file"])
    plan, folder = plan_experiment(
        document,
        read,
        environment=os.environ,
        resolve=lambda files, settings: _resolved(ctx, files, settings),
        output=given["output"],
        only=given["only"] or (),
        seeds=_numbers(given["seeds"]),
    )
    check_recorded(folder, plan.document(), workflow.EXPERIMENT)
    workflow.check_cells(plan, given["only"] or ())
    return plan, folder


def _resolved(ctx: typer.Context, files: Sequence[str], settings: Mapping[str, Any]) -> Loaded:
    ctx.params["config"] = list(files)
    return options.load(ctx, settings, quiet=True)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError as error:
        raise UsageError(f"--seeds takes whole numbers, not {text!r}.", remedy="--seeds 0,1,2") from error
    if len(set(numbers)) < len(numbers) or any(number < 0 for number in numbers):
        raise UsageError(f"--seeds {text}: seeds are natural numbers, each once.", remedy="--seeds 0,1,2")
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
