"""Registers the `finqa` environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check

NAME = "finqa"


@hookimpl
def register_components() -> list[Component]:
    """Register the environment. Its server needs OpenEnv, inside the sandbox only."""
    return [
        Component(
            kind="environment",
            clustered_by="company",
            name=NAME,
            target="finqa_plugins.environments.openenv_finqa.finqa_environment:FinQAEnvironment",
            config="finqa_plugins.environments.openenv_finqa.config:FinQAConfig",
            summary="financial questions over company tables, with SQL tools (OpenEnv protocol)",
            requires=("websockets",),
            readiness="finqa_plugins.environments.openenv_finqa.config:readiness",
        )
    ]


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Check that the server can run, if the environment is `finqa` and runs on this machine."""
    if settings["environment"]["name"] != NAME:
        return []
    from finqa_plugins.environments.openenv_finqa.config import readiness

    return readiness(settings)
