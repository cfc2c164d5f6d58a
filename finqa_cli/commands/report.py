"""`finqa report RUN [RUN]`: what happened in a run, as one HTML file that needs no network."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.commands.shared.options import EXIT_CODES, AsJson, CommandApp
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.publishing.report.run_report import MOST_EPISODES, Report, write_report

app = CommandApp()


@app.command(epilog=f"Example: finqa report runs/a; finqa report runs/a --control runs/b. {EXIT_CODES}")
def main(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folder of a run of eval, train or sample; two folders are compared question by question."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File to write; an older report is overwritten.", show_default="RUN/report.html"),
    ] = None,
    control: Annotated[
        Path | None,
        typer.Option(
            "--control",
            help="The control of RUN: the same training run with --shuffle-rewards.",
        ),
    ] = None,
    episodes: Annotated[
        int,
        typer.Option(
            "--episodes",
            help="Largest number of episodes of a run in the file; beyond it, whole steps are left out.",
            min=1,
        ),
    ] = MOST_EPISODES,
    as_json: AsJson = False,
) -> None:
    """Write one HTML file of a run: score, curves, every episode with its turns, groups, and two runs compared.

    The report of a training run that was evaluated begins with the same questions before and after.

    Open it in a browser. It loads nothing from elsewhere and runs no code of its data.
    """
    report = write_report(runs, out, control=control, episodes=episodes)
    emit(
        {
            "out": str(report.path),
            "bytes": report.size,
            "runs": [
                {"run": str(path), "episodes": episodes, "episodes_shown": shown}
                for path, episodes, shown in report.runs
            ],
        },
        as_json=as_json,
        text=lambda: _text(report),
    )


def _text(report: Report) -> str:
    """Return where the report is, and the command that shows the same pages in the browser."""
    shown = sum(count for _, _, count in report.runs)
    named = shlex.join(str(path) for path, _, _ in report.runs)
    beside = f" --control {shlex.quote(str(report.control))}" if report.control else ""
    return (
        f"Report: {report.path} ({plural(shown, 'episode')}, {report.size / 1e6:.1f} MB)\n"
        f"Open {report.path} in a browser, or: finqa view {named}{beside}"
    )
