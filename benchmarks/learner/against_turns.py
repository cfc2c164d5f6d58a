"""An update on whole episodes against the published form, one sequence a turn: tokens, time and gradient."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Figure, at_least, at_most, note
from benchmarks.learner.jobs import Clock, Job, Measured, Preparation, measure, prepare
from benchmarks.learner.shapes import Shape

SHAPE = Shape(prompt=600, turns=5, sampled=60, tool=120, group=6)
ROWS = 12
"""Of a micro-batch, in both forms: the guide's own default."""
FEWER_TOKENS, FASTER, SAME_GRADIENT = 3.5, 3.3, 1e-5

Pair = tuple[Measured, Measured]
"""An update per episode and the same per turn."""


def against_turns(
    folder: Path, *, episodes: int, repeats: int, repeat_episodes: int, threads: int, shape: Shape = SHAPE
) -> list[Figure]:
    """One pair of updates on all episodes, then shorter pairs in turns; each update in its own process."""
    prepare(Preparation(folder=folder, shape=shape, scored=episodes), threads=threads)
    longest = shape.prompt + shape.turns * shape.sampled + (shape.turns - 1) * shape.tool
    ours = Job(
        start=folder,
        shape=shape,
        episodes=episodes,
        warm_up=shape.group,
        token_budget=ROWS * longest,
        rows=ROWS,
        gradient=folder / "per-episode.safetensors",
    )
    pairs = [_pair(ours, threads)]
    shorter = replace(ours, episodes=repeat_episodes, gradient=None)
    padded = []
    for _ in range(repeats):
        pairs.append(_pair(shorter, threads))
        padded.append((measure(replace(shorter, packing="off"), threads=threads), pairs[-1][1]))
    whole, published = pairs[0]
    overall, worst = gradient_difference(ours.gradient, _per_turn(ours).gradient)
    size = f"{episodes} episodes, {threads} threads"
    return [
        at_least(
            "times fewer tokens", published.tokens / whole.tokens, FEWER_TOKENS, f"{published.tokens} to {whole.tokens}"
        ),
        *speedups(pairs, size),
        at_most(
            "relative difference of the gradient", overall, SAME_GRADIENT, f"of all; {worst:.1e} in the worst tensor"
        ),
        note(
            "times faster, CPU seconds, with padding",
            median_speedup(padded, "CPU"),
            "padded rectangles, in which each episode computes its prompt for itself",
        ),
        note("per episode: seconds", whole.seconds[0], size),
        note("per turn: seconds", published.seconds[0], size),
        note("per episode: CPU seconds", whole.cpu_seconds[0], size),
        note("per turn: CPU seconds", published.cpu_seconds[0], size),
        note("per episode: memory over start, MiB", whole.grown_mib, size),
        note("per turn: memory over start, MiB", published.grown_mib, size),
    ]


def speedups(pairs: Sequence[Pair], size: str) -> list[Figure]:
    """How much faster the first of each pair is, the median over pairs."""
    figures = []
    clocks: tuple[Clock, ...] = ("wall", "CPU")
    for clock in clocks:
        each = ", ".join(f"{ratio:.2f}" for ratio in _ratios(pairs, clock))
        detail = f"median of {len(pairs)} pairs: {each}; the first of {size}"
        speed = median_speedup(pairs, clock)
        figures.append(at_least(f"times faster, {clock} seconds", speed, FASTER, detail, timed=True))
    return figures


def median_speedup(pairs: Sequence[Pair], clock: Clock) -> float:
    """Of the first of each pair over the second."""
    return statistics.median(_ratios(pairs, clock))


def gradient_difference(ours: Path | None, published: Path | None) -> tuple[float, float]:
    """Norm of the difference over norm of the published gradient: of all tensors, and of the worst one."""
    from safetensors.numpy import load_file

    assert ours is not None and published is not None
    first, second = load_file(ours), load_file(published)
    if first.keys() != second.keys() or any(first[name].shape != second[name].shape for name in first):
        raise ValueError("the two forms do not train the same tensors")
    apart = {name: float(((first[name] - second[name]) ** 2).sum()) for name in first}
    norms = {name: float((second[name] ** 2).sum()) for name in first}
    if not all(norms.values()):
        raise ValueError("some tensor has no gradient, so nothing is compared")
    worst = max(math.sqrt(apart[name] / norms[name]) for name in first)
    return math.sqrt(sum(apart.values()) / sum(norms.values())), worst


def _ratios(pairs: Sequence[Pair], clock: Clock) -> list[float]:
    return [published.times(clock)[0] / whole.times(clock)[0] for whole, published in pairs]


def _pair(job: Job, threads: int) -> Pair:
    return measure(job, threads=threads), measure(_per_turn(job), threads=threads)


def _per_turn(job: Job) -> Job:
    gradient = job.gradient.with_name("per-turn.safetensors") if job.gradient else None
    return replace(job, form="per turn", gradient=gradient)
