"""`finqa sandbox`: list boxes and end those that were left behind."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared import options
from finqa_cli.commands.shared.output import emit, plural, print_table
from finqa_cli.commands.shared.run_arguments import perform
from finqa_cli.diagnostics import sandbox_listing as workflow
from finqa_cli.errors import UsageError
from finqa_cli.types import SandboxInfo
from finqa_cli.wiring import sandbox_owners

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
    """List the sandboxes of this user, from whatever process started them, and whether that process is running.

    Exit codes: 0 ok, 69 the provider cannot be reached, 77 its key is missing or refused.

    Example: finqa sandbox ls --sandbox local
    """
    settings = options.load(ctx, quiet=True).settings
    boxes = perform(lambda *_: workflow.list_sandboxes(settings, run), as_json=as_json, quiet=True, patient=False)
    document = {"provider": settings.sandbox.name, "sandboxes": [_document(box) for box in boxes]}
    emit(document, as_json=as_json, text=lambda: _print_list(boxes, settings.sandbox.name))


@app.command()
def reap(
    ctx: typer.Context,
    ids: Annotated[list[str] | None, typer.Argument(help="Just these sandboxes.", show_default=False)] = None,
    run: Annotated[str, typer.Option("--run", help="Those of this run.", show_default=False)] = "",
    older_than: Annotated[
        str, typer.Option("--older-than", help="Those of at least this age: 90s, 30m, 2h, 1d.", show_default=False)
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="All of them, also those in use.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be ended, and end nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before sandboxes in use are ended.")] = False,
    sandbox: options.Sandbox = None,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
) -> None:
    """End sandboxes and wait until they are gone: those left behind by ended processes of this machine, or others
    by id, --run, --older-than or --all.

    On a terminal it asks first when some are in use by a process of this machine that is running.

    Exit codes: 0 ok, 1 no such id, 69 some could not be ended, 77 the provider's key is missing or refused.

    Example: finqa sandbox reap --dry-run
    """
    selection = workflow.Selection(
        ids=tuple(ids or ()), run=run, older_than_s=parse_age(older_than), everything=everything
    )
    settings = options.load(ctx, quiet=True).settings
    now = time.time()
    boxes = perform(
        lambda *_: workflow.select(settings, selection, now=now), as_json=as_json, quiet=True, patient=False
    )
    if not (dry_run or yes or as_json or _agreed(boxes)):
        boxes = ()
    if boxes and not dry_run:
        perform(
            lambda reporter, _: workflow.reap(settings, boxes, reporter=reporter),
            as_json=as_json,
            remedy="finqa sandbox ls shows what is left",
            patient=False,
        )
    document = {
        "provider": settings.sandbox.name,
        "dry_run": dry_run,
        "reaped": [_document(box) for box in boxes],
    }
    emit(document, as_json=as_json, text=lambda: _print_reaped(boxes, settings.sandbox.name, dry_run=dry_run))


def parse_age(text: str) -> float | None:
    """Seconds of `90s`, `30m`, `2h` or `1d`; None for an empty text.

    Raises:
        UsageError: It is none of these.
    """
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not found:
        raise UsageError(f"--older-than takes an age such as 90s, 30m, 2h or 1d, not {text!r}.")
    return float(found[1]) * SECONDS[found[2]]


def _agreed(boxes: Sequence[SandboxInfo]) -> bool:
    """True when nobody uses them, when there is nobody to ask, or after a yes."""
    used = [box for box in boxes if sandbox_owners.owner_state(box.labels) == "alive"]
    if not used or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    verb = "is" if len(used) == 1 else "are"
    return typer.confirm(f"{len(used)} of {plural(len(boxes), 'sandbox')} {verb} in use. End them?", err=True)


def _document(box: SandboxInfo) -> dict[str, Any]:
    return {**asdict(box), "owner": sandbox_owners.owner_state(box.labels)}


def _print_list(boxes: Sequence[SandboxInfo], provider: str) -> None:
    if not boxes:
        print(f"There are no {provider} sandboxes.")
        return
    _print_boxes(boxes)
    left = len(sandbox_owners.strays(boxes))
    hint = f", {left} left behind: {sandbox_owners.reap_command(provider)}" if left else "."
    print(f"{plural(len(boxes), f'{provider} sandbox')}{hint}")


def _print_reaped(boxes: Sequence[SandboxInfo], provider: str, *, dry_run: bool) -> None:
    if not boxes:
        print(f"No {provider} sandbox to end. All there are: finqa sandbox ls --sandbox {provider}")
    elif dry_run:
        _print_boxes(boxes)
        print(f"Would end {plural(len(boxes), f'{provider} sandbox')}.")
    else:
        print(f"Ended {plural(len(boxes), f'{provider} sandbox')}.")


def _print_boxes(boxes: Sequence[SandboxInfo]) -> None:
    now = time.time()
    rows = [
        (box.id, box.state, _age(now - box.created), box.labels.get(sandbox_owners.RUN_LABEL), _owner(box))
        for box in boxes
    ]
    print_table(("sandbox", "state", "age", "run", "owner"), rows)


def _owner(box: SandboxInfo) -> str | None:
    """The running process, or why there is none to name; short, since ids may be long."""
    state = sandbox_owners.owner_state(box.labels)
    if state == "alive":
        return f"pid {box.labels[sandbox_owners.PID_LABEL].partition(':')[0]}"
    return {"gone": "gone", "elsewhere": box.labels.get(sandbox_owners.HOST_LABEL), "unknown": None}[state]


def _age(seconds: float) -> str:
    for unit in ("d", "h", "m"):
        if seconds >= 2 * SECONDS[unit]:
            return f"{seconds / SECONDS[unit]:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
