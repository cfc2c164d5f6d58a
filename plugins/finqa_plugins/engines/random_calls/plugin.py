"""Registers the random baseline."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The `random` engine."""
    package = "finqa_plugins.engines.random_calls.random_engine"
    return [
        Component(
            kind="engine",
            modelless=True,
            name="random",
            target=f"{package}:RandomEngine",
            config=f"{package}:RandomConfig",
            summary="A baseline that calls random tools with random arguments; play and eval",
        )
    ]
