"""`finqa data check`: statistics, oddities and problems of a data folder or question file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.commands.shared import options
from finqa_cli.commands.shared.output import emit
from finqa_cli.data.check_data import check_path
from finqa_cli.data.check_data import summary, write_report
from finqa_cli.data.generated.embedded import embedded_layout
from finqa_cli.errors import UsageError
from finqa_cli.runs.run_folder import new_run_path
from finqa_cli.settings import EMBEDDED

QUICK_ROWS = 64


def check(
    path: Annotated[
        Path,
        typer.Argument(
            help="A data folder, a file of the original FinQA, any question file, or `embedded`: that is written to "
            "`data` in the folder of the report first."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for check_report.json, check_report.md and manifest.json.",
            show_default="runs/check_YYYYMMDD_HHMMSS",
        ),
    ] = None,
    quick_test: Annotated[
        bool,
        typer.Option("--quick-test", help=f"Of a file, the first {QUICK_ROWS} rows, to see that everything works."),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Check every table and row. Tells counts and quirks, and lists what is wrong: file, row, field, reason.

    Writes the whole report and a manifest with the checksums of what was checked.

    Exit codes: 0 nothing is wrong (quirks are no errors), 65 something is missing or malformed, 74 writing failed.

    Example: finqa data check my-data --out report
    """
    folder = out or new_run_path(Path("runs"), "check_")
    embedded = path == Path(EMBEDDED) and not path.exists()
    if quick_test and (embedded or path.is_dir()):
        raise UsageError(
            "--quick-test is of files: the tables of a data folder belong together.", remedy=f"finqa data check {path}"
        )
    report = check_path(embedded_layout(folder / "data") if embedded else path, most=QUICK_ROWS if quick_test else None)
    write_report(report, folder, timestamp=datetime.now(UTC).isoformat(timespec="seconds"))
    document = {**report.document(), "report": str(folder)}
    part = f"At most {QUICK_ROWS} rows were looked at.\n" if quick_test else ""
    emit(document, as_json=as_json, text=f"{summary(report)}\n{part}Report: {folder / 'check_report.md'}")
    if report.problems:
        raise typer.Exit(65)
