"""Registers the rewards."""

from __future__ import annotations

import shlex

from finqa_cli.errors import ConfigError
from finqa_cli.extend import Component, hookimpl

FOLDER = "finqa_plugins.rewards"


@hookimpl
def register_components() -> list[Component]:
    """The rewards `weighted`, `ternary`, `function` (of the user) and `graded`."""
    return [
        Component(
            kind="reward",
            name="weighted",
            target=f"{FOLDER}.answer_rewards:Weighted",
            config=f"{FOLDER}.answer_rewards:WeightedConfig",
            summary="Sum of exact, numerical and program parts, minus a format penalty; reward_spec.yaml",
        ),
        Component(
            kind="reward",
            name="ternary",
            target=f"{FOLDER}.answer_rewards:Ternary",
            config=f"{FOLDER}.answer_rewards:TernaryConfig",
            summary="+1 exact, 0 close or open, -1 wrong; reward_spec.yaml",
        ),
        Component(
            kind="reward",
            name="function",
            target=f"{FOLDER}.reward_function:Function",
            config=f"{FOLDER}.reward_function:FunctionConfig",
            summary="Your own function with verl's signature, compute_score",
        ),
        Component(
            kind="reward",
            name="graded",
            target=f"{FOLDER}.answer_rewards:Graded",
            config=f"{FOLDER}.answer_rewards:GradedConfig",
            summary="1 when right by a grading profile, else 0",
        ),
    ]


@hookimpl
def find_component(kind: str, name: str) -> Component | None:
    """Return None, because rewards are found only by their registered names.

    Raises:
        ConfigError: The name is a Python file; the remedy shows how its function is used.
    """
    if kind == "reward" and (name.endswith(".py") or ".py:" in name):
        raise ConfigError(
            f"There is no reward named {name!r}. A function in a file is used by the reward 'function'.",
            remedy=f"--reward function --set reward.options.function={shlex.quote(name)}",
        )
    return None
