"""Registers the training methods."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """`grpo` and `sft`."""
    return [
        Component(
            kind="optimizer",
            name="grpo",
            target="finqa_plugins.optimizers.grpo:Grpo",
            config="finqa_plugins.optimizers.grpo:GrpoConfig",
            summary="Group-relative policy optimization: reward minus the group's mean, clipped importance ratio",
        ),
        Component(
            kind="optimizer",
            name="sft",
            target="finqa_plugins.optimizers.sft:Sft",
            summary="Imitation of demonstrations by cross entropy",
        ),
    ]
