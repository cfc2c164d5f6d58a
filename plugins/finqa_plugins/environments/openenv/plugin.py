"""Registers the `openenv` environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check


@hookimpl
def register_components() -> list[Component]:
    """Register the environment; its servers have their own packages."""
    package = "finqa_plugins.environments.openenv"
    return [
        Component(
            kind="environment",
            name="openenv",
            target=f"{package}.openenv_environment:OpenEnvEnvironment",
            config=f"{package}.config:OpenEnvConfig",
            summary="any server of OpenEnv's protocol: by URL, folder, module or image",
            requires=("websockets",),
            snapshotless=True,
        )
    ]


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Check a folder or a running server with OpenEnv's own checks, if the environment is `openenv`."""
    if settings["environment"]["name"] != "openenv":
        return []
    from finqa_plugins.environments.openenv.openenv_doctor import checks

    return checks(settings)
