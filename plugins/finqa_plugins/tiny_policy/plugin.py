"""Resolves the reference `embedded` to the policy that ships with the package."""

from __future__ import annotations

from pathlib import Path

from finqa_cli.extend import hookimpl
from finqa_cli.types import PolicyVersion

REFERENCE = "embedded"


@hookimpl
def resolve_policy(reference: str) -> PolicyVersion | None:
    """The folder of this module is the model folder."""
    return PolicyVersion(number=0, model=str(Path(__file__).parent)) if reference == REFERENCE else None
