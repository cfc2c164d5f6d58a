"""A plot of a run's rewards, written next to its metrics when the run ends."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from finqa_cli.contracts import Tracker, TrackerContext
from finqa_plugins.trackers.scalar_trackers import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TRAINED, _HELD_OUT = "#4477AA", "#EE6677"

_FEWEST = 2
"""Minimum number of iterations for a plot."""


class PlotConfig(BaseModel):
    """Options of `plot`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["png", "svg", "pdf"] = Field(default="png", description="Format of RUN/rewards.*")


class PlotTracker(Tracker):
    """Plots metrics.jsonl when the run ends, so that the plot of a resumed run shows the whole run."""

    def __init__(self, config: PlotConfig, context: TrackerContext) -> None:
        self._format = config.format
        self._context = context

    def on_run_end(self, status: str) -> None:
        """Write `<run>/rewards.<format>`, also for a stopped run, if there are at least two iterations."""
        del status
        records = read_metrics(self._context.run_dir)
        trained = [record for record in records if record.get("kind") == "train" and "reward_mean" in record]
        if len(trained) >= _FEWEST:
            self._draw(trained, [record for record in records if record.get("kind") == "eval"])

    def _draw(self, trained: Sequence[Mapping[str, Any]], held_out: Sequence[Mapping[str, Any]]) -> None:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        with matplotlib.rc_context({"text.parse_math": False, "font.size": 10, "svg.hashsalt": "finqa"}):
            figure = Figure(figsize=(7.5, 6.0 if held_out else 3.6), layout="constrained")
            panels = figure.subplots(2 if held_out else 1, sharex=True, squeeze=False)[:, 0]
            for axes in panels:
                axes.spines[["top", "right"]].set_visible(False)
                axes.grid(alpha=0.3)
                axes.set_axisbelow(True)
            _rewards(panels[0], trained, held_out)
            if held_out:
                _accuracy(panels[1], held_out)
            panels[0].set_title(self._context.run_id)
            panels[-1].set_xlabel("iteration")
            panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
            target = self._context.run_dir / f"rewards.{self._format}"
            partial = target.with_name(f".{target.name}.{os.getpid()}")
            figure.savefig(partial, format=self._format, dpi=150)
            partial.replace(target)


def _rewards(axes: Axes, trained: Sequence[Mapping[str, Any]], held_out: Sequence[Mapping[str, Any]]) -> None:
    iterations = [record["iteration"] for record in trained]
    means = [float(record["reward_mean"]) for record in trained]
    low, high = zip(*(record.get("reward_interval") or (math.nan, math.nan) for record in trained), strict=True)
    if not all(map(math.isnan, low)):  # earlier versions recorded no intervals
        label = "95 % interval of the mean, by question"
        axes.fill_between(iterations, low, high, color=_TRAINED, alpha=0.15, linewidth=0, label=label)
    axes.plot(iterations, means, color=_TRAINED, marker=".", label="rollouts, mean")
    if held_out:
        evaluated = [record["iteration"] for record in held_out]
        rewards = [float(record["reward_mean"]) for record in held_out]
        axes.plot(evaluated, rewards, "D", color=_HELD_OUT, markersize=6, label="held-out questions, mean")
    axes.set_ylabel("reward")
    axes.legend(framealpha=0.9)


def _accuracy(axes: Axes, held_out: Sequence[Mapping[str, Any]]) -> None:
    for record in held_out:
        mean, (low, high) = float(record["accuracy"]), record["accuracy_interval"]
        ends = [[max(0.0, mean - low)], [max(0.0, high - mean)]]
        axes.errorbar([record["iteration"]], [mean], yerr=ends, fmt="D", capsize=4, color=_HELD_OUT, markersize=6)
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("accuracy on held-out\nquestions, 95 % interval")
