"""Registers the `finqa` environment."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The environment. Its server needs openenv-core, inside the box only."""
    return [
        Component(
            kind="environment",
            name="finqa",
            target="finqa_plugins.openenv_finqa.environment:FinQAEnvironment",
            config="finqa_plugins.openenv_finqa.config:FinQAConfig",
            summary="financial questions over company tables, with SQL tools (OpenEnv protocol)",
            requires=("websockets",),
        )
    ]
