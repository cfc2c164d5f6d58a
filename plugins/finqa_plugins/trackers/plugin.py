"""Registers the trackers `plot`, `tensorboard`, `trackio` and `wandb`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check


def wandb_readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether wandb finds a key without a prompt, or needs none; see `Component.readiness`."""
    options: Mapping[str, Any] = next((one["options"] for one in settings["trackers"] if one["name"] == "wandb"), {})
    netrc = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    mode = options.get("mode") or os.environ.get("WANDB_MODE", "online")
    if mode in ("offline", "disabled") or os.environ.get("WANDB_API_KEY", "").strip() or netrc.is_file():
        return []
    detail = "needs WANDB_API_KEY, a login or WANDB_MODE=offline"
    return [Check(name="wandb", status="fail", detail=detail, remedy="wandb login")]


@hookimpl
def register_components() -> list[Component]:
    """The trackers. `plot` is part of every run if matplotlib is installed; the others are used if they are named."""
    return [
        Component(
            kind="tracker",
            name="plot",
            target="finqa_plugins.trackers.plot:PlotTracker",
            config="finqa_plugins.trackers.plot:PlotConfig",
            summary="RUN/rewards.png: rewards by iteration and evaluations; automatic if matplotlib is installed",
            requires=("matplotlib",),
            extra="report",
            standing=True,
        ),
        Component(
            kind="tracker",
            name="tensorboard",
            target="finqa_plugins.trackers.scalar_trackers:TensorBoardTracker",
            summary="Event files under RUN/tensorboard; needs tensorboard and torch",
            requires=("tensorboard", "torch"),
            extra="trackers,train",
        ),
        Component(
            kind="tracker",
            name="trackio",
            target="finqa_plugins.trackers.scalar_trackers:TrackioTracker",
            config="finqa_plugins.trackers.scalar_trackers:TrackioConfig",
            summary="A run in trackio's local store: trackio show --project PROJECT",
            requires=("trackio",),
            extra="trackers",
        ),
        Component(
            kind="tracker",
            name="wandb",
            target="finqa_plugins.trackers.scalar_trackers:WandbTracker",
            config="finqa_plugins.trackers.scalar_trackers:WandbConfig",
            summary="A run on Weights & Biases, or offline under RUN/wandb",
            requires=("wandb",),
            extra="trackers",
            readiness="finqa_plugins.trackers.plugin:wandb_readiness",
        ),
    ]
