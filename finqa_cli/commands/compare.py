"""`finqa compare RUN...`: compares evaluated runs, with intervals and tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.commands.shared.options import EXIT_CODES, AsJson, CommandApp
from finqa_cli.commands.shared.output import emit, plain_table
from finqa_cli.evaluation.cluster_nouns import plural_noun
from finqa_cli.evaluation.compare.comparison import CompareResult, compare
from finqa_cli.evaluation.compare.comparison_report import check_out, document, sentence, write_comparison
from finqa_cli.evaluation.compare.plots import plotter
from finqa_cli.runs.run_folder import new_run_path

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
    emit({"out": str(folder), **document(result)}, as_json=as_json, text=lambda: _text(result, folder))


def _text(result: CompareResult, folder: Path) -> str:
    rows = [
        [
            method.label,
            f"{method.accuracy.mean:.3f} [{method.accuracy.low:.3f}, {method.accuracy.high:.3f}]",
            method.questions,
            method.accuracy.clusters,
            len(method.runs),
            ", ".join(str(run.seed) for run in method.runs),
            _hours(sum(run.cost.hours for run in method.runs if run.cost)),
        ]
        for method in result.methods
    ]
    lines = [
        plain_table(
            [
                "method",
                f"accuracy, {100 * result.level:g} % interval",
                "questions",
                plural_noun(result.clustered_by),
                "runs",
                "seeds",
                "training",
            ],
            rows,
        ),
        "",
        *(_plain(sentence(result, comparison)) for comparison in result.comparisons),
        *(f"Mind: {note}" for note in result.notes),
        "",
        f"Report: {folder / 'report.md'}",
    ]
    return "\n".join(lines)


def _plain(markdown: str) -> str:
    return markdown.replace("\\", "").replace("`", "")


def _hours(hours: float) -> str:
    return f"{hours:.2f} h" if hours >= 0.1 else f"{3600 * hours:.0f} s" if hours else "-"
