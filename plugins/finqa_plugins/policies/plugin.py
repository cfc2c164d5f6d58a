"""Resolves the references of the policies that ship with the package."""

from __future__ import annotations

from pathlib import Path

from finqa_cli.extend import hookimpl
from finqa_cli.types import PolicyVersion

_HERE = Path(__file__).parent
FOLDERS = {"embedded": _HERE} | {f"embedded-{name}": _HERE / name for name in ("code", "forecast", "mbpp", "text")}


@hookimpl
def resolve_policy(reference: str) -> PolicyVersion | None:
    """Return the embedded policy of this name; None for other references."""
    folder = FOLDERS.get(reference)
    return PolicyVersion(number=0, model=str(folder)) if folder else None
