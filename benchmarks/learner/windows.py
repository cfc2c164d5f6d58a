"""A Gemma 3 whose layers have a sliding window but for one in six: packed rows against padded ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Figure, at_least, at_most, note
from benchmarks.learner.against_turns import ROWS, SAME_GRADIENT, SHAPE, gradient_difference, median_speedup
from benchmarks.learner.jobs import Job, ModelSize, Preparation, measure, prepare

MODEL = ModelSize(layers=6, window=512)
FASTER = 1.3


def windows(folder: Path, *, episodes: int, repeats: int, threads: int) -> list[Figure]:
    """Updates on episodes that are longer than the window, in groups that share a prompt longer than it."""
    prepare(Preparation(folder=folder, model=MODEL, shape=SHAPE, scored=episodes), threads=threads)
    longest = SHAPE.prompt + SHAPE.turns * SHAPE.sampled + (SHAPE.turns - 1) * SHAPE.tool
    packed = Job(
        start=folder,
        shape=SHAPE,
        episodes=episodes,
        warm_up=SHAPE.group,
        token_budget=ROWS * longest,
        rows=ROWS,
        gradient=folder / "packed.safetensors",
    )
    padded = replace(packed, packing="off", gradient=folder / "padded.safetensors")
    pairs = [(measure(packed, threads=threads), measure(padded, threads=threads)) for _ in range(repeats)]
    overall, worst = gradient_difference(packed.gradient, padded.gradient)
    size = f"{episodes} episodes of up to {longest} tokens, window {MODEL.window}, {threads} threads"
    return [
        at_least("times faster than padded, CPU seconds", median_speedup(pairs, "CPU"), FASTER, size, timed=True),
        at_most(
            "relative difference of the gradient", overall, SAME_GRADIENT, f"of all; {worst:.1e} in the worst tensor"
        ),
        note("packed: CPU seconds", pairs[0][0].cpu_seconds[0], size),
        note("padded: CPU seconds", pairs[0][1].cpu_seconds[0], size),
        note("packed: memory over start, MiB", pairs[0][0].grown_mib, size),
        note("padded: memory over start, MiB", pairs[0][1].grown_mib, size),
    ]
