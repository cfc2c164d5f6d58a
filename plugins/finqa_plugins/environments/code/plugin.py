"""Registers the environments `code` and `mbpp`."""

from __future__ import annotations

from finqa_cli.extend import Component, Flag, hookimpl

FOLDER = "finqa_plugins.environments.code"
TASKS = "Data and evaluation"


@hookimpl
def register_components() -> list[Component]:
    """Register both environments. Code of the policy is executed in sandboxes only."""
    return [
        Component(
            kind="environment",
            snapshotless=True,
            policy="embedded-code",
            policy_profile=f"{FOLDER}:embedded-code.toml",
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
            policy_profile=f"{FOLDER}:embedded-mbpp.toml",
            clustered_by="question",
            name="mbpp",
            target=f"{FOLDER}.mbpp_environment:MbppEnvironment",
            config=f"{FOLDER}.config:MbppConfig",
            summary="Python problems with tests (MBPP with --data FILE), in several attempts with the errors "
            "as feedback",
            flags={
                "dataset_limit": Flag(
                    flags="--dataset-limit",
                    kind=int,
                    help="Limit of problems per split; 0: all (mbpp)",
                    shown="0",
                    panel=TASKS,
                ),
                "max_attempts": Flag(
                    flags="--max-attempts", kind=int, help="Attempts per problem (mbpp)", shown="3", panel=TASKS
                ),
            },
        ),
    ]
