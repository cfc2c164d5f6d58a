"""Registers the `mbpp` environment."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The environment. What the policy writes runs in boxes only."""
    return [
        Component(
            kind="environment",
            snapshotless=True,
            policy="embedded-mbpp",
            clustered_by="question",
            name="mbpp",
            target="finqa_plugins.environments.mbpp.mbpp_environment:MbppEnvironment",
            config="finqa_plugins.environments.mbpp.config:MbppConfig",
            summary="Python problems with tests (MBPP by --data FILE), attempts with the errors as feedback in between",
        )
    ]
