"""Registers the `finqa` environment."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check

NAME, OPENENV = "finqa", "openenv"


@hookimpl
def register_components() -> list[Component]:
    """The environment. Its server needs openenv-core, inside the box only."""
    return [
        Component(
            kind="environment",
            clustered_by="company",
            name=NAME,
            target="finqa_plugins.openenv_finqa.environment:FinQAEnvironment",
            config="finqa_plugins.openenv_finqa.config:FinQAConfig",
            summary="financial questions over company tables, with SQL tools (OpenEnv protocol)",
            requires=("websockets",),
        )
    ]


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Whether the server can run where it is to run on this machine."""
    chosen = settings["environment"]
    serves_here = chosen["name"] == NAME and not chosen["options"].get("url") and settings["sandbox"]["name"] == "local"
    if not serves_here or importlib.util.find_spec(OPENENV) is not None:
        return []
    detail = f"its server needs {OPENENV}, which is not installed"
    return [Check(name="environment", status="fail", detail=detail, remedy=f"pip install 'finqa[{OPENENV}]'")]
