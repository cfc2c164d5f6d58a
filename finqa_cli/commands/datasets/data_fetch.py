"""`finqa data fetch`: download a public data set."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from finqa_cli.commands.shared import options
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.commands.shared.progress import progress
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import dotenv_variables

if TYPE_CHECKING:
    from finqa_cli.data.fetch import FetchReport, Source

_PHASE = "download (kB)"
_SHOWN_FILES = 3


def fetch_data(
    name: Annotated[
        Literal["snorkel", "rllm", "finqa", "mbpp"],
        typer.Argument(metavar="SOURCE", help="Data set: snorkel, rllm, finqa or mbpp."),
    ],
    revision: Annotated[
        str | None,
        typer.Option("--revision", help="Commit, branch or tag.", show_default="the pinned commit, else main"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder to fill.", show_default="data/SOURCE")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            help="A mirror of the hub (as HF_ENDPOINT), or for finqa a GitHub Enterprise Server.",
            show_default=False,
        ),
    ] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Download a public data set at a pinned commit, with checksums in DIR/fetch.json.

    The same command again checks every file, fetches damaged ones and resumes what was interrupted. Gated data needs
    HF_TOKEN or `hf auth login`.

    Exit codes: 0 ok, 2 usage, 65 unknown revision or wrong bytes, 69 host unreachable, 74 writing failed, 77 no access,
    78 huggingface_hub is missing.

    Example: finqa data fetch snorkel --out data/snorkel
    """
    from finqa_cli.data.fetch import SOURCES, fetch  # its HTTP client is of no use to the other data commands

    dotenv_variables()  # HF_TOKEN may be there
    source = SOURCES[name]
    folder = out or Path("data") / name
    with progress(as_json=as_json, quiet=quiet) as reporter:
        watch = _Watch(reporter)
        try:
            report = fetch(source, folder, revision=revision, endpoint=endpoint, observer=watch)
        finally:
            reporter.finish(_PHASE)
    emit(_document(source, folder, report), as_json=as_json, text=_text(source, folder, report))


class _Watch:
    """Shows the download as one phase, which begins with the first byte."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._started = False

    def line(self, text: str) -> None:
        self._reporter.line(text)

    def moved(self, done: int, total: int) -> None:
        if not self._started:
            self._started = True
            self._reporter.start(_PHASE, _kilobytes(total))
        self._reporter.advance(_PHASE, _kilobytes(done))


def _kilobytes(size: int) -> int:
    return (size + 999) // 1000


def _document(source: Source, folder: Path, report: FetchReport) -> dict[str, Any]:
    return {
        "path": str(folder),
        **report.manifest.model_dump(mode="json"),
        "downloaded": report.downloaded,
        "resumed": report.resumed,
        "mended": report.repaired,
        "next": _next(source, folder),
    }


def _text(source: Source, folder: Path, report: FetchReport) -> str:
    manifest = report.manifest
    size = sum(record.bytes for record in manifest.files)
    what = f"{manifest.repository} at {manifest.revision[:12]}, licence {manifest.licence}, in {folder}"
    files = f"{plural(len(manifest.files), 'file')}, {size / 1e6:.1f} MB"
    if report.downloaded:
        lines = [f"Fetched {len(report.downloaded)} of {files}: {what}"]
    else:
        lines = [f"{'Repaired' if report.repaired else 'Nothing to do'}: {files}, every checksum is right: {what}"]
    if report.repaired:
        lines.append(f"Damaged or missing, now right: {_names(report.repaired)}")
    if report.resumed:
        lines.append(f"Resumed: {_names(report.resumed)}")
    if manifest.unpacked:
        lines.append(f"Unpacked {plural(manifest.unpacked.files, 'file')} from {manifest.unpacked.archive}")
    if held_out := [record.path for record in manifest.files if record.evaluation_only]:
        lines.append(f"For evaluation only: {'all of it' if manifest.evaluation_only else _names(held_out)}")
    if manifest.terms:
        lines.append(f"Terms: {manifest.terms}")
    return "\n".join([*lines, *(f"Next: {command}" for command in _next(source, folder))])


def _names(paths: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(paths) - _SHOWN_FILES} more" if len(paths) > _SHOWN_FILES else ""
    return ", ".join(paths[:_SHOWN_FILES]) + more


def _next(source: Source, folder: Path) -> list[str]:
    return [step.format(folder=shlex.quote(str(folder))) for step in source.next_steps]
