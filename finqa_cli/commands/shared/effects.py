"""Flags that would have no effect are refused: whoever gives one expects that it counts."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from finqa_cli.commands.shared.resume import as_typed
from finqa_cli.errors import UsageError
from finqa_cli.extend import Component


def check_snapshot(ctx: typer.Context, environment: str, known: Iterable[Component]) -> None:
    """Raises UsageError when a snapshot is named on the command line and the environment, one of `known`, has none."""
    if "environment" not in ctx.params or ctx.params.get("snapshot") is None:
        return  # a command about snapshots only, whatever ./finqa.toml plays
    if any(component.name == environment and component.snapshotless for component in known):
        flag = as_typed(ctx, ["snapshot"])
        raise UsageError(
            f"Environment {environment!r} has no snapshot, so that {flag} would have no effect.",
            remedy=f"leave {flag} out; --data names a file of tasks",
        )
