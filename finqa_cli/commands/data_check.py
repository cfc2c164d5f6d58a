"""`finqa data check`: statistics, oddities and problems of a data folder or question file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.commands import _options as options
from finqa_cli.commands._output import emit
from finqa_cli.data.check_report import summary, write_report
from finqa_cli.data.checks import check_path

_REPORT = "Report: --out DIR writes check_report.json, check_report.md and manifest.json"


def check(
    path: Annotated[Path, typer.Argument(help="A data folder, a file of the original FinQA, or any question file.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for check_report.json, check_report.md and manifest.json."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check every table and row. Tells counts and quirks, and lists what is wrong: file, row, field, reason.

    Exit codes: 0 nothing is wrong (quirks are no errors), 65 something is missing or malformed, 74 writing failed.

    Example: finqa data check my-data --out report
    """
    report = check_path(path)
    if out is not None:
        write_report(report, out, timestamp=datetime.now(UTC).isoformat(timespec="seconds"))
    hint = f"\n{_REPORT}" if out is None else ""
    emit(report.document(), as_json=as_json, text=f"{summary(report)}{hint}")
    if report.problems:
        raise typer.Exit(65)
