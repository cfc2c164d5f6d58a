"""Registers the trackers."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """`tensorboard` and `wandb`."""
    return [
        Component(
            kind="tracker",
            name="tensorboard",
            target="finqa_plugins.trackers.tensorboard:TensorBoardTracker",
            summary="Event files under RUN/tensorboard; needs tensorboard and torch",
            requires=("tensorboard", "torch"),
        ),
        Component(
            kind="tracker",
            name="wandb",
            target="finqa_plugins.trackers.wandb:WandbTracker",
            config="finqa_plugins.trackers.wandb:WandbConfig",
            summary="A run on Weights & Biases, or offline under RUN/wandb",
            requires=("wandb",),
        ),
    ]
