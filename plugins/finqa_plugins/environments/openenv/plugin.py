"""Registers the `openenv` environment."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


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
