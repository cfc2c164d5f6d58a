"""Registers the `finqa` environment."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check

NAME, OPENENV = "finqa", "openenv"
SERVER_NEEDS = (OPENENV, "httptools")
"""Import names that the server needs; the extra `openenv` installs them."""


@hookimpl
def register_components() -> list[Component]:
    """Register the environment. Its server needs openenv-core, inside the sandbox only."""
    return [
        Component(
            kind="environment",
            clustered_by="company",
            name=NAME,
            target="finqa_plugins.environments.openenv_finqa.finqa_environment:FinQAEnvironment",
            config="finqa_plugins.environments.openenv_finqa.config:FinQAConfig",
            summary="financial questions over company tables, with SQL tools (OpenEnv protocol)",
            requires=("websockets",),
            readiness="finqa_plugins.environments.openenv_finqa.plugin:readiness",
        )
    ]


def readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Check that the server can run if sandboxes are processes of this machine; see `Component.readiness`."""
    chosen = settings["environment"]
    elsewhere = settings["sandbox"]["name"] != "local" or (chosen["name"] == NAME and chosen["options"].get("url"))
    missing = [name for name in SERVER_NEEDS if importlib.util.find_spec(name) is None]
    if elsewhere or not missing:
        return []
    detail = f"its server needs {' and '.join(missing)}, which is not installed"
    return [Check(name="environment", status="fail", detail=detail, remedy=f"pip install 'finqa[{OPENENV}]'")]


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Check that the server can run, if the environment is `finqa` and runs on this machine."""
    return readiness(settings) if settings["environment"]["name"] == NAME else []
