"""Peak memory of an update over token budgets and numbers of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.figures import Figure, at_least, at_most, note
from benchmarks.learner.jobs import Job, ModelSize, Preparation, measure, prepare
from benchmarks.learner.shapes import Shape

VOCABULARY = 512
"""Small, so that it matters little which micro-batch has how many sampled tokens."""
SHAPE = Shape(prompt=128, shortest_prompt=64, sampled=64, group=4, vocabulary=VOCABULARY)
MODEL = ModelSize(vocabulary=VOCABULARY, layers=2)
BY_EPISODES, BY_BUDGET = 1.15, 2.0
"""More episodes may cost so many times the memory at most; four times the budget must cost so many times at least."""

Grid = dict[tuple[int, int], float]
"""MiB over start, by token budget and number of episodes."""


def budgets(
    folder: Path, *, budgets: Sequence[int], episodes: Sequence[int], threads: int, shape: Shape = SHAPE
) -> list[Figure]:
    """The grid, and what it must show."""
    prepare(Preparation(folder=folder, model=MODEL, shape=shape), threads=threads)
    grid = {
        (budget, count): measure(
            Job(start=folder, shape=shape, episodes=count, token_budget=budget, rows=count),
            threads=threads,
            exact_memory=True,
        ).grown_mib
        for budget in budgets
        for count in episodes
    }
    cells = [note(f"MiB, budget {budget}, {count} episodes", mib) for (budget, count), mib in grid.items()]
    return [*judged(grid), *cells]


def judged(grid: Grid) -> list[Figure]:
    """Memory follows the budget and not the episodes."""
    sizes, counts = sorted({budget for budget, _ in grid}), sorted({count for _, count in grid})
    by_episodes = max(grid[size, counts[-1]] / grid[size, counts[0]] for size in sizes)
    steps = [
        (grid[large, count] - grid[small, count]) / (large - small)
        for small, large in pairwise(sizes)
        for count in counts
    ]
    by_budget = min(grid[sizes[-1], count] / grid[sizes[0], count] for count in counts)
    times = counts[-1] / counts[0]
    return [
        at_most(f"memory at {times:g} times the episodes", by_episodes, BY_EPISODES, "the worst budget", timed=True),
        at_least(
            f"memory at {sizes[-1] / sizes[0]:g} times the budget", by_budget, BY_BUDGET, "the worst number", timed=True
        ),
        note("KiB a token of the budget", max(steps) * 1024, f"least {min(steps) * 1024:.1f}"),
    ]
