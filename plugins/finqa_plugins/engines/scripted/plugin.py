"""Registers the scripted expert."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The `scripted` engine."""
    return [
        Component(
            kind="engine",
            modelless=True,
            name="scripted",
            target="finqa_plugins.engines.scripted.scripted_engine:ScriptedEngine",
            config="finqa_plugins.engines.scripted.scripted_engine:ScriptedConfig",
            summary="An expert that solves the generated FinQA tasks, with optional mistakes; play and eval",
        )
    ]
