"""Registers the `tatqa` environment."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The `tatqa` environment. It runs in this process and needs no extra packages."""
    return [
        Component(
            kind="environment",
            snapshotless=True,
            sandboxless=True,
            clustered_by="page",
            name="tatqa",
            target="finqa_plugins.environments.tatqa.tatqa_environment:TatQAEnvironment",
            config="finqa_plugins.environments.tatqa.config:TatQAConfig",
            summary="TAT-QA in one turn: a table with its paragraphs, answered with spans or a number and a scale",
        )
    ]
