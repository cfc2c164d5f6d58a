"""Registers the human engine."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The `human` engine."""
    return [
        Component(
            kind="engine",
            modelless=True,
            name="human",
            target="finqa_plugins.engines.human.human_engine:HumanEngine",
            summary="You play: prints the conversation to the terminal and reads your tool calls",
        )
    ]
