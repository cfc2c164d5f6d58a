"""The plots of a comparison, drawn by matplotlib's own Agg canvas: no display and no global state."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from finqa_cli.errors import MissingDependencyError
from finqa_cli.evaluation.cluster_nouns import clustered_by
from finqa_cli.evaluation.compare.comparison import CompareResult
from finqa_cli.runs.durable_files import storage

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB")
"""Paul Tol's bright scheme, distinguishable with colour blindness."""
_LINES = ("-", "--", ":", "-.")
"""Styles of curves by method, so that all curves are visible where they coincide."""

_Draw = Callable[[CompareResult, "Axes"], None]


def plotter() -> Callable[[CompareResult, Path], list[str]]:
    """Returns a function that draws the plots of a comparison into a folder and returns the names of the files.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingDependencyError(
            "Plots need matplotlib, which is not installed.", remedy="pip install 'finqa[report]', or --no-plots"
        )
    return _draw


def _draw(result: CompareResult, folder: Path) -> list[str]:
    import matplotlib
    from matplotlib.figure import Figure

    pictures: list[tuple[str, _Draw, float]] = [
        ("accuracy_by_method.png", _accuracy, 1.6 + 0.45 * len(result.methods)),
        ("differences.png", _differences, 1.6 + 0.45 * len(result.comparisons)),
    ]
    if any(run.cost for run in result.runs):
        pictures.append(("quality_vs_cost.png", _cost, 4.2))
    if any(run.cost and run.cost.curve for run in result.runs):
        pictures.append(("reward_by_iteration.png", _curves, 4.2))
    with storage(folder):
        folder.mkdir()
    for name, draw, height in pictures:
        # labels are texts of the user: a $ in them does not begin a formula
        with matplotlib.rc_context({"text.parse_math": False, "font.size": 10}):
            figure = Figure(figsize=(7.5, height), layout="constrained")
            axes = figure.add_subplot()
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3)
            axes.set_axisbelow(True)
            draw(result, axes)
            with storage(folder / name):
                figure.savefig(folder / name, dpi=150, metadata={"Software": None})
    return [name for name, _, _ in pictures]


def _accuracy(result: CompareResult, axes: Axes) -> None:
    for row, method in enumerate(result.methods):
        interval = method.accuracy
        ends = [[interval.mean - interval.low], [interval.high - interval.mean]]
        axes.errorbar([interval.mean], [row], xerr=ends, fmt="o", capsize=4, color=_colour(row), zorder=3)
        if len(method.runs) > 1:
            axes.plot(method.of_runs, [row + 0.18] * len(method.runs), "|", color=_colour(row), markersize=9)
    _rows(axes, [method.label for method in result.methods])
    axes.set_xlim(-0.02, 1.02)
    seeds_shown = "; ticks: single runs" if any(len(method.runs) > 1 for method in result.methods) else ""
    and_run = " and run" if seeds_shown else ""
    interval_shown = f"{100 * result.level:g} % interval {clustered_by(result.clustered_by)}{and_run}"
    axes.set_xlabel(f"accuracy on held-out questions, {interval_shown}{seeds_shown}")


def _differences(result: CompareResult, axes: Axes) -> None:
    for row, comparison in enumerate(result.comparisons):
        paired = comparison.paired
        mean, low, high = (100 * value for value in (paired.difference, paired.low, paired.high))
        colour = _COLOURS[0] if comparison.verdict == "shown" else "#777777"
        axes.errorbar([mean], [row], xerr=[[mean - low], [high - mean]], fmt="o", capsize=4, color=colour, zorder=3)
    axes.axvline(0, color="black", linewidth=1)
    _rows(axes, [f"{one.first} minus {one.second} ({one.paired.about})" for one in result.comparisons])
    axes.set_xlabel(
        f"difference in percentage points, paired by question, {100 * result.level:g} % interval\n"
        "(blue: both tests show it after Holm's correction)"
    )


def _cost(result: CompareResult, axes: Axes) -> None:
    longest = max(run.cost.hours for run in result.runs if run.cost)
    unit, per_hour = ("hours", 1) if longest >= 1 else ("minutes", 60)
    for row, method in enumerate(result.methods):
        pairs = zip(method.runs, method.of_runs, strict=True)
        known = [(run.cost.hours * per_hour, accuracy) for run, accuracy in pairs if run.cost]
        if known:
            axes.plot(*zip(*known, strict=True), "o", color=_colour(row), label=method.label)
        else:  # nothing was trained, or the training's folder no longer exists: a line to compare with
            axes.axhline(
                method.accuracy.mean, linestyle="--", color=_colour(row), label=f"{method.label}, no cost known"
            )
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(0, longest * per_hour * 1.1 or 1)
    axes.set_xlabel(f"{unit} of training (wall time of its iterations)")
    axes.set_ylabel("accuracy on held-out questions")
    axes.legend(framealpha=0.9)


def _curves(result: CompareResult, axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    for row, method in enumerate(result.methods):
        label = method.label
        for run in method.runs:
            if run.cost and run.cost.curve:
                iterations = range(1, len(run.cost.curve) + 1)
                axes.plot(
                    iterations,
                    run.cost.curve,
                    linestyle=_LINES[row % len(_LINES)],
                    color=_colour(row),
                    marker=".",
                    alpha=0.8,
                    label=label,
                )
                label = "_"  # one entry of the legend for all seeds
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("iteration")
    axes.set_ylabel("mean reward of the rollouts")
    axes.legend(framealpha=0.9)


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    shown = [label if len(label) <= 40 else f"{label[:37]}..." for label in labels]
    axes.set_yticks(range(len(labels)), shown)
    axes.set_ylim(len(labels) - 0.5, -0.5)


def _colour(row: int) -> str:
    return _COLOURS[row % len(_COLOURS)]
