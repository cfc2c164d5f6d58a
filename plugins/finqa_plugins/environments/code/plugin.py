"""Registers the environments `code` and `mbpp`."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl

FOLDER = "finqa_plugins.environments.code"


@hookimpl
def register_components() -> list[Component]:
    """Register both environments. Code of the policy is executed in sandboxes only."""
    return [
        Component(
            kind="environment",
            snapshotless=True,
            policy="embedded-code",
            clustered_by="question",
            name="code",
            target=f"{FOLDER}.function_environment:FunctionEnvironment",
            config=f"{FOLDER}.config:CodeConfig",
            summary="functions written in Python, graded with tests in a sandbox (--data FILE, a TOML or Python file)",
        ),
        Component(
            kind="environment",
            snapshotless=True,
            policy="embedded-mbpp",
            clustered_by="question",
            name="mbpp",
            target=f"{FOLDER}.mbpp_environment:MbppEnvironment",
            config=f"{FOLDER}.config:MbppConfig",
            summary="Python problems with tests (MBPP with --data FILE), in several attempts with the errors "
            "as feedback",
        ),
    ]
