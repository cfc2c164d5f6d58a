"""`--quick-test`: small counts, to see that everything works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from finqa_cli.commands.shared.options import PATHS


def quick(ctx: typer.Context, counts: Mapping[str, Any]) -> dict[str, Any]:
    """The counts by the settings that they stand for, without those that a flag gives; none unless it was asked for."""
    if not ctx.params["quick_test"]:
        return {}
    return {PATHS[name]: count for name, count in counts.items() if ctx.params[name] is None}


def shown(counts: Mapping[str, Any]) -> str:
    """The counts as flags, for the help."""
    return ", ".join(f"--{name.replace('_', '-')} {count}" for name, count in counts.items())
