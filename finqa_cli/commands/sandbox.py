"""`finqa sandbox`: list sandboxes and end those that were left behind."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import age_text, emit, plural, print_table
from finqa_cli.commands.shared.perform import perform
from finqa_cli.diagnostics import sandbox_listing as workflow
from finqa_cli.errors import UsageError
from finqa_cli.types import SandboxInfo
from finqa_cli.wiring import sandbox_owners

app = CommandApp("List sandboxes and remove those that were left behind.", epilog=EXIT_CODES)

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@app.command("ls")
@offers("sandbox.name", general=("config", "assign", "as_json"))
def list_sandboxes(
    line: CommandLine,
    run: Annotated[str, typer.Option("--run", help="Only sandboxes of this run.", show_default=False)] = "",
) -> None:
    """List the sandboxes of this user, with the process that started each and whether it is running.

    Exit codes: 0 ok, 69 the provider cannot be reached, 77 its key is missing or refused.

    Example: finqa sandbox ls --sandbox local
    """
    settings = line.load(quiet=True).settings
    sandboxes = perform(line, lambda *_: workflow.list_sandboxes(settings, run), quiet=True, patient=False)
    document = {"provider": settings.sandbox.name, "sandboxes": [_document(each) for each in sandboxes]}
    emit(document, as_json=line.as_json, text=lambda: _print_list(sandboxes, settings.sandbox.name))


@app.command()
@offers("sandbox.name", general=("config", "assign", "as_json"))
def reap(
    line: CommandLine,
    ids: Annotated[list[str] | None, typer.Argument(help="Just these sandboxes.", show_default=False)] = None,
    run: Annotated[str, typer.Option("--run", help="Sandboxes of this run.", show_default=False)] = "",
    older_than: Annotated[
        str, typer.Option("--older-than", help="Sandboxes of at least this age: 90s, 30m, 2h, 1d.", show_default=False)
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="All sandboxes, also those in use.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the sandboxes that would be removed, and remove nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before sandboxes in use are removed.")] = False,
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
    settings = line.load(quiet=True).settings
    now = time.time()
    sandboxes = perform(line, lambda *_: workflow.select(settings, selection, now=now), quiet=True, patient=False)
    if not (dry_run or yes or line.as_json or _agreed(sandboxes)):
        sandboxes = ()
    if sandboxes and not dry_run:
        perform(
            line,
            lambda reporter, _: workflow.reap(settings, sandboxes, reporter=reporter),
            remedy=f"{sandbox_owners.list_command(settings.sandbox.name)} shows what is left",
            patient=False,
        )
    document = {
        "provider": settings.sandbox.name,
        "dry_run": dry_run,
        "reaped": [_document(each) for each in sandboxes],
    }
    emit(document, as_json=line.as_json, text=lambda: _print_reaped(sandboxes, settings.sandbox.name, dry_run=dry_run))


def parse_age(text: str) -> float | None:
    """Return the seconds of `90s`, `30m`, `2h` or `1d`; None for an empty text.

    Raises:
        UsageError: The text has none of these forms.
    """
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not found:
        raise UsageError(f"--older-than must be an age such as 90s, 30m, 2h or 1d, not {text!r}.")
    return float(found[1]) * SECONDS[found[2]]


def _agreed(sandboxes: Sequence[SandboxInfo]) -> bool:
    """Return True if no sandbox is in use, if there is no terminal to ask on, or after a yes."""
    used = [each for each in sandboxes if sandbox_owners.owner_state(each.labels) == "alive"]
    if not used or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    verb = "is" if len(used) == 1 else "are"
    return typer.confirm(f"{len(used)} of {plural(len(sandboxes), 'sandbox')} {verb} in use. Remove them?", err=True)


def _document(each: SandboxInfo) -> dict[str, Any]:
    return {**asdict(each), "owner": sandbox_owners.owner_state(each.labels)}


def _print_list(sandboxes: Sequence[SandboxInfo], provider: str) -> None:
    if not sandboxes:
        print(f"There are no {provider} sandboxes.")
        return
    _print_table(sandboxes)
    left = len(sandbox_owners.strays(sandboxes))
    hint = f", {left} left behind: {sandbox_owners.reap_command(provider)}" if left else "."
    print(f"{plural(len(sandboxes), f'{provider} sandbox')}{hint}")
    if stuck := sum(each.state == "stuck" for each in sandboxes):
        print(
            f"{stuck} stuck: {provider} has not carried out the deletion, and may still count them. finqa sandbox reap "
            "--all asks again; if that fails, only its support can remove them."
        )


def _print_reaped(sandboxes: Sequence[SandboxInfo], provider: str, *, dry_run: bool) -> None:
    if not sandboxes:
        print(f"No {provider} sandbox to remove. List all: {sandbox_owners.list_command(provider)}")
    elif dry_run:
        _print_table(sandboxes)
        print(f"Would end {plural(len(sandboxes), f'{provider} sandbox')}.")
    else:
        print(f"Ended {plural(len(sandboxes), f'{provider} sandbox')}.")


def _print_table(sandboxes: Sequence[SandboxInfo]) -> None:
    now = time.time()
    rows = [
        (each.id, each.state, age_text(now - each.created), each.labels.get(sandbox_owners.RUN_LABEL), _owner(each))
        for each in sandboxes
    ]
    print_table(("sandbox", "state", "age", "run", "owner"), rows)


def _owner(each: SandboxInfo) -> str | None:
    """Return the running process that owns a sandbox, or why none is known; short, because ids may be long."""
    state = sandbox_owners.owner_state(each.labels)
    if state == "alive":
        return f"pid {each.labels[sandbox_owners.PID_LABEL].partition(':')[0]}"
    return {"gone": "gone", "elsewhere": each.labels.get(sandbox_owners.HOST_LABEL), "unknown": None}[state]
