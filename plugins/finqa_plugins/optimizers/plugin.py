"""Registers the training methods."""

from __future__ import annotations

from typing import Literal

from finqa_cli.extend import Component, Flag, hookimpl

OF_DPO = {
    "loss_type": Flag(
        flags="--loss-type",
        kind=Literal["sigmoid", "hinge", "ipo"],
        help="Form of the loss",
        shown="sigmoid",
        main=True,
    ),
    "beta": Flag(flags="--beta", kind=float, help="Pull towards the reference", shown="0.1", main=True),
    "label_smoothing": Flag(
        flags="--label-smoothing",
        kind=float,
        help="Share of preferences that may be wrong; sigmoid only",
        shown="0",
    ),
    "reference_free": Flag(flags="--reference-free", kind=bool, help="Loss without the reference policy"),
    "epochs": Flag(flags="--epochs", kind=float, help="Passes over the pairs", shown="1", main=True),
    "pairs_per_step": Flag(
        flags="--pairs-per-step", kind=int, help="Pairs of one optimizer step", shown="16", main=True
    ),
    "validate_every": Flag(
        flags="--validate-every",
        kind=int,
        help="Steps between validations on held-out pairs, each with a checkpoint",
        shown="50",
    ),
    "validation_samples": Flag(
        flags="--validation-samples",
        kind=int,
        help="Held-out questions that the policy answers at each validation; 0: none",
        shown="0",
    ),
}


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
            command="dpo",
            flags=OF_DPO,
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
            command="sft",
        ),
    ]
