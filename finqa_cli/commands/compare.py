"""`finqa compare RUN...`: compares evaluated runs, with intervals and tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.commands.shared.options import EXIT_CODES, AsJson, CommandApp
from finqa_cli.commands.shared.output import emit, plain_table
from finqa_cli.evaluation.cluster_nouns import plural_noun
from finqa_cli.evaluation.compare.comparison import CompareResult, Method, compare
from finqa_cli.evaluation.compare.comparison_report import (
    check_out,
    document,
    failure_table,
    sentence,
    write_comparison,
)
from finqa_cli.evaluation.compare.evaluated_runs import EvaluatedRun
from finqa_cli.evaluation.compare.plots import plotter
from finqa_cli.runs.run_folder import new_run_path
from finqa_cli.types.token_use import TokenUse, dollars, short_count, total_use

app = CommandApp()


@app.command(epilog=f"Example: finqa compare runs/grpo runs/ppo ours=runs/a ours=runs/b. {EXIT_CODES}")
def main(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Folders of `finqa eval`, of `finqa train` for its last evaluation, or of `finqa pipeline`. "
            "LABEL=FOLDER names a method; runs of one label are its seeds."
        ),
    ],
    baseline: Annotated[
        str,
        typer.Option("--baseline", metavar="LABEL", help="Compare with this method only.", show_default="every pair"),
    ] = "",
    level: Annotated[
        float, typer.Option("--level", help="Confidence level of intervals and tests.", min=0.5, max=0.9999)
    ] = 0.95,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the report.", show_default="runs/compare_YYYYMMDD_HHMMSS")
    ] = None,
    plots: Annotated[
        bool | None, typer.Option("--plots/--no-plots", help="Plots by matplotlib.", show_default="plots")
    ] = None,
    quick_test: Annotated[bool, typer.Option("--quick-test", help="No plots, unless --plots is given.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare methods on the held-out questions that their runs share: accuracy, paired differences, tests, cost.

    Writes report.md, summary.csv, questions.csv, comparison.json, plots/ and manifest.json; overwrites nothing.
    """
    folder = out or new_run_path(Path("runs"), "compare_")
    check_out(folder)
    plots = not quick_test if plots is None else plots
    if plots:
        plotter()  # a missing matplotlib is reported before the runs are read
    result = compare(runs, baseline=baseline, level=level)
    write_comparison(result, folder, plots=plots)
    emit({"out": str(folder), **document(result)}, as_json=as_json, text=lambda: comparison_text(result, folder))


def comparison_text(result: CompareResult, folder: Path) -> str:
    """Return a comparison as a table of methods, a sentence for each pair, notes, and where the report is.

    Seeds and time of training are columns if a policy was trained, tokens and cost if one has a price.
    """
    runs = result.runs
    paid = any(run.usage is not None and run.usage.cost_usd is not None for run in runs)
    columns: list[tuple[str, bool, Callable[[Method], object]]] = [
        ("method", True, lambda method: method.label),
        (
            f"accuracy, {100 * result.level:g} % interval",
            True,
            lambda method: f"{method.accuracy.mean:.3f} [{method.accuracy.low:.3f}, {method.accuracy.high:.3f}]",
        ),
        ("questions", True, lambda method: method.questions),
        (plural_noun(result.clustered_by), True, lambda method: method.accuracy.clusters),
        ("runs", True, lambda method: len(method.runs)),
        ("seeds", _is_trained(runs), lambda method: ", ".join(str(run.seed) for run in method.runs)),
        ("training", _is_trained(runs), lambda method: _hours(sum(run.cost.hours for run in method.runs if run.cost))),
        ("tokens", paid, lambda method: _tokens(total_use(run.usage for run in method.runs))),
        ("cost", paid, lambda method: _dollars(total_use(run.usage for run in method.runs))),
    ]
    shown = [(name, cell) for name, is_shown, cell in columns if is_shown]
    rows = [[cell(method) for _, cell in shown] for method in result.methods]
    reasons = failure_table(result)
    lines = [
        plain_table([name for name, _ in shown], rows),
        "",
        *(_plain(sentence(result, comparison)) for comparison in result.comparisons),
        *(f"Mind: {note}" for note in result.notes),
        "",
        *(
            [plain_table(["why attempts are wrong", *(each.label for each in result.methods)], reasons), ""]
            * bool(reasons)
        ),
        f"Report: {folder / 'report.md'}",
    ]
    return "\n".join(lines)


def _is_trained(runs: Sequence[EvaluatedRun]) -> bool:
    return any(run.cost is not None for run in runs)


def _tokens(use: TokenUse | None) -> str:
    return "-" if use is None else f"{'about ' if use.estimated else ''}{short_count(use.tokens)}"


def _dollars(use: TokenUse | None) -> str:
    return "-" if use is None or use.cost_usd is None else dollars(use.cost_usd)


def _plain(markdown: str) -> str:
    return markdown.replace("\\", "").replace("`", "")


def _hours(hours: float) -> str:
    return f"{hours:.2f} h" if hours >= 0.1 else f"{3600 * hours:.0f} s" if hours else "-"
