"""`finqa sandbox`: list boxes and end those that were left behind."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from finqa_cli.commands import _options as options
from finqa_cli.commands._output import emit, plural, print_table
from finqa_cli.commands._progress import progress
from finqa_cli.errors import UsageError
from finqa_cli.types import SandboxInfo
from finqa_cli.workflows import sandboxes as workflow

app = typer.Typer(
    help="List sandboxes and end those that were left behind.",
    epilog=options.EXIT_CODES,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@app.command("ls")
def list_sandboxes(
    ctx: typer.Context,
    run: Annotated[str, typer.Option("--run", help="Only those of this run.", show_default=False)] = "",
    sandbox: options.Sandbox = None,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
) -> None:
    """List the sandboxes of this user, from whatever process started them.

    Exit codes: 0 ok, 69 the provider cannot be reached, 77 its key is missing or refused.

    Example: finqa sandbox ls --sandbox local
    """
    loaded = options.load(ctx)
    boxes = asyncio.run(workflow.list_boxes(loaded.settings, run))
    document = {"provider": loaded.settings.sandbox.name, "sandboxes": [asdict(box) for box in boxes]}
    emit(document, as_json=as_json, text=lambda: _print(boxes, time.time()))


@app.command()
def reap(
    ctx: typer.Context,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of sandboxes.", show_default=False)] = None,
    run: Annotated[str, typer.Option("--run", help="Those of this run.", show_default=False)] = "",
    older_than: Annotated[
        str, typer.Option("--older-than", help="Those of at least this age: 90s, 30m, 2h, 1d.", show_default=False)
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="All of them, also those in use.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be ended, and end nothing.")] = False,
    sandbox: options.Sandbox = None,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
) -> None:
    """End sandboxes that were left behind. Say which: ids, --run, --older-than, or --all.

    Exit codes: 0 ok, 1 no such id, 2 nothing was selected, 69 some could not be ended.

    Example: finqa sandbox reap --older-than 2h --dry-run
    """
    if not (ids or run or older_than or everything):
        raise UsageError(
            "Say which sandboxes to end: ids, --run, --older-than or --all.",
            remedy="finqa sandbox reap --all --dry-run",
        )
    selection = workflow.Selection(ids=tuple(ids or ()), run=run, older_than_s=parse_age(older_than))
    loaded, now = options.load(ctx), time.time()
    with progress(as_json=as_json) as reporter:
        work = workflow.reap(loaded.settings, selection, now=now, dry_run=dry_run, reporter=reporter)
        boxes = asyncio.run(work)
    document: dict[str, Any] = {
        "provider": loaded.settings.sandbox.name,
        "dry_run": dry_run,
        "reaped": [asdict(box) for box in boxes],
    }
    verb = "Would end" if dry_run else "Ended"
    emit(document, as_json=as_json, text=f"{verb} {plural(len(boxes), 'sandbox')}.")


def parse_age(text: str) -> float:
    """Seconds of `90s`, `30m`, `2h` or `1d`; an empty text is 0.

    Raises:
        UsageError: It is none of these.
    """
    if not text:
        return 0.0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not found:
        raise UsageError(f"--older-than takes an age such as 90s, 30m, 2h or 1d, not {text!r}.")
    return float(found[1]) * SECONDS[found[2]]


def _print(boxes: Sequence[SandboxInfo], now: float) -> None:
    if not boxes:
        print("There are no sandboxes.")
        return
    rows = [(box.id, box.state, _age(now - box.created), box.labels.get(workflow.RUN_LABEL)) for box in boxes]
    print_table(("id", "state", "age", "run"), rows)


def _age(seconds: float) -> str:
    for unit in ("d", "h", "m"):
        if seconds >= 2 * SECONDS[unit]:
            return f"{seconds / SECONDS[unit]:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
