"""Registers the `code` environment."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The environment. What the policy writes is executed in sandboxes only."""
    return [
        Component(
            kind="environment",
            snapshotless=True,
            policy="embedded-code",
            clustered_by="question",
            name="code",
            target="finqa_plugins.environments.code_tasks.code_environment:CodeEnvironment",
            config="finqa_plugins.environments.code_tasks.config:CodeConfig",
            summary="functions written in Python, judged by tests in a sandbox (--data FILE, a TOML or Python file)",
        )
    ]
