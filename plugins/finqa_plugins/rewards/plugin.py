"""Registers the rewards."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl

FOLDER = "finqa_plugins.rewards"


@hookimpl
def register_components() -> list[Component]:
    """Component, ternary and graded rewards, and a function of the user's own."""
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
