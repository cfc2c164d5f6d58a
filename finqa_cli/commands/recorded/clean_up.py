"""`finqa gc`: delete old checkpoints, and what killed processes left behind."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.recorded.list_runs import RUNS
from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, plain_table, plural, size_text
from finqa_cli.errors import DataError, FinqaError, printable
from finqa_cli.runs.leftovers import Leftover, delete_leftovers, find_leftovers
from finqa_cli.runs.run_summary import disk_use
from finqa_cli.settings import Settings
from finqa_cli.wiring.build import make_provider

app = CommandApp()


@app.command(epilog=f"Example: finqa gc --keep 2. {EXIT_CODES}")
@offers("sandbox.name", general=("config", "assign", "as_json"))
def main(
    line: CommandLine,
    folder: Annotated[Path | None, typer.Argument(help="Folder of runs, or a run.", show_default="runs")] = None,
    keep: Annotated[
        int,
        typer.Option("--keep", min=1, help="Number of newest checkpoints to keep per run; damaged ones do not count."),
    ] = 1,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
) -> None:
    """Show what is not needed any more with its size, and delete it after a yes: old checkpoints of runs that ended,
    copies of policies that their engines served, what killed processes left behind, and files of sandboxes that ended.

    Nothing of a running run is touched, nor a checkpoint that another run names or that a manifest lists: every run can
    still be resumed, evaluated, exported and compared. Without a terminal and without --yes it only shows.
    """
    settings = line.load(quiet=True).settings
    place = folder or RUNS
    if folder is not None and not place.is_dir():
        raise DataError(f"There is no folder {folder}.", remedy="finqa gc FOLDER, with a folder of runs")
    found, notes = find_leftovers(place, keep=keep) if place.is_dir() else ([], [])
    try:
        found += _of_sandboxes(settings)
    except FinqaError as error:  # checkpoints can be deleted without the key or package of the provider
        notes.append(f"files of {settings.sandbox.name} sandboxes were not searched: {error.message}")
    if not line.as_json:
        _print_found(found, notes)
    deleted: Sequence[Leftover] = ()
    skipped: Sequence[str] = ()
    if found and (yes or (not line.as_json and _agreed(found))):
        deleted, skipped = delete_leftovers(found)
        notes += skipped
        if not line.as_json:
            _print_found((), skipped)
    document = {
        "folder": str(place),
        "found": [_document(each) for each in found],
        "deleted": [_document(each) for each in deleted],
        "notes": notes,
    }
    emit(document, as_json=line.as_json, text=_ending(found, deleted, refused=bool(skipped)))


def _of_sandboxes(settings: Settings) -> list[Leftover]:
    provider = make_provider(settings)
    try:
        paths = provider.leftovers()
    finally:
        asyncio.run(provider.close())
    return [
        Leftover(path=path, what="file of an ended sandbox server", size=disk_use(path), within=path.parent)
        for path in paths
    ]


def _agreed(found: Sequence[Leftover]) -> bool:
    """Ask whether to delete. Return True after a yes; without a terminal do not ask and return False."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    size = size_text(sum(each.size for each in found))
    return typer.confirm(f"Delete {plural(len(found), 'item')}, {size}?", err=True)


def _print_found(found: Sequence[Leftover], notes: Sequence[str]) -> None:
    if found:
        rows = [(size_text(each.size), each.what, str(each.path)) for each in found]
        print(plain_table(("size", "what", "path"), rows), flush=True)
    for note in notes:
        print(printable(note), flush=True)


def _ending(found: Sequence[Leftover], deleted: Sequence[Leftover], *, refused: bool) -> str:
    if not found:
        return "There is nothing to delete."
    items = deleted or found
    counted = f"{plural(len(items), 'item')}, {size_text(sum(each.size for each in items))}"
    if refused and not deleted:
        return "Nothing was deleted."
    return f"Deleted {counted}." if deleted else f"Nothing was deleted; --yes deletes {counted}."


def _document(each: Leftover) -> dict[str, Any]:
    return {"path": str(each.path), "what": each.what, "size": each.size, "run": str(each.run) if each.run else None}
