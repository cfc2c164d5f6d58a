"""Registers the trackers."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """`plot`, which every run with matplotlib has, and those that are named: `tensorboard`, `wandb` and `trackio`."""
    return [
        Component(
            kind="tracker",
            name="plot",
            target="finqa_plugins.trackers.plot:PlotTracker",
            config="finqa_plugins.trackers.plot:PlotConfig",
            summary="RUN/rewards.png: rewards by iteration and evaluations; by itself where matplotlib is installed",
            requires=("matplotlib",),
            extra="report",
            standing=True,
        ),
        Component(
            kind="tracker",
            name="tensorboard",
            target="finqa_plugins.trackers.tensorboard:TensorBoardTracker",
            summary="Event files under RUN/tensorboard; needs tensorboard and torch",
            requires=("tensorboard", "torch"),
            extra="trackers,train",
        ),
        Component(
            kind="tracker",
            name="trackio",
            target="finqa_plugins.trackers.trackio:TrackioTracker",
            config="finqa_plugins.trackers.trackio:TrackioConfig",
            summary="A run in trackio's local store: trackio show --project PROJECT",
            requires=("trackio",),
            extra="trackers",
        ),
        Component(
            kind="tracker",
            name="wandb",
            target="finqa_plugins.trackers.wandb:WandbTracker",
            config="finqa_plugins.trackers.wandb:WandbConfig",
            summary="A run on Weights & Biases, or offline under RUN/wandb",
            requires=("wandb",),
            extra="trackers",
        ),
    ]
