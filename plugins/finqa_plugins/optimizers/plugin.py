"""Registers the training methods."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The methods `dpo`, `grpo`, `ppo`, `reinforce`, `rloo` and `sft`."""
    return [
        Component(
            kind="optimizer",
            name="dpo",
            target="finqa_plugins.optimizers.recorded_methods:Dpo",
            config="finqa_plugins.optimizers.recorded_methods:DpoConfig",
            summary="Direct preference optimization, on recorded pairs of attempts: finqa dpo",
            learning_rates=(2e-4, 1e-5),
        ),
        Component(
            kind="optimizer",
            name="grpo",
            target="finqa_plugins.optimizers.grpo:Grpo",
            config="finqa_plugins.optimizers.grpo:GrpoConfig",
            summary="Group-relative policy optimization: reward minus the group's mean, clipped importance ratio",
        ),
        Component(
            kind="optimizer",
            name="ppo",
            target="finqa_plugins.optimizers.ppo:Ppo",
            config="finqa_plugins.optimizers.ppo:PpoConfig",
            summary="Proximal policy optimization: advantages per token from a value function, several epochs",
        ),
        Component(
            kind="optimizer",
            name="reinforce",
            target="finqa_plugins.optimizers.reinforce:Reinforce",
            config="finqa_plugins.optimizers.reinforce:ReinforceConfig",
            summary="The plain policy gradient, with or without a baseline",
        ),
        Component(
            kind="optimizer",
            name="rloo",
            target="finqa_plugins.optimizers.reinforce:Rloo",
            config="finqa_plugins.optimizers.reinforce:RlooConfig",
            summary="REINFORCE leave-one-out: reward minus the mean of the group's other members",
        ),
        Component(
            kind="optimizer",
            name="sft",
            target="finqa_plugins.optimizers.recorded_methods:Sft",
            summary="Imitation of demonstrations by cross entropy",
        ),
    ]
