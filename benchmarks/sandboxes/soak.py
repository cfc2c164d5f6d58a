"""All sessions busy for a long time, with sandboxes that die now and then: do memory, files or threads grow?"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figures import Figure, at_most, exactly, note
from benchmarks.sandboxes.processes import open_files
from benchmarks.sandboxes.rollouts import stage_of
from benchmarks.sandboxes.world import Fleet
from benchmarks.server_processes import resident_mib
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.seeds import derive
from finqa_cli.rollout.stream import play_stream
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.types import Task, Trajectory

MEMORY_PER_HOUR = 0.02
SHORT_MEMORY_MIB = 16.0
SHORTEST_FOR_A_RATE_S = 600.0
WARM_UP = 1 / 3
SAMPLES = 120
KILLED_A_MINUTE = 0.01
LAG_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """This process at a moment. `lag_s` is the longest time that its event loop was late since the last sample."""

    at_s: float
    memory_mib: float
    files: int
    threads: int
    tasks: int
    lag_s: float


class EndlessSource:
    """Attempts at all tasks in turn until the time is up; counts what came of them."""

    def __init__(self, tasks: Sequence[Task], seed: int, seconds: float) -> None:
        self._tasks = itertools.cycle(tasks)
        self._numbers = itertools.count()
        self._seed = seed
        self._end = time.monotonic() + seconds
        self.episodes = 0
        self.faults = 0

    def next(self) -> Attempt | None:
        """The next one; None once the time is up."""
        if time.monotonic() >= self._end:
            return None
        number, task = next(self._numbers), next(self._tasks)
        return Attempt(id=f"soak/{number}", task=task, member=0, seed=derive(self._seed, "soak", number))

    def done(self, attempt: Attempt, trajectory: Trajectory) -> None:
        """Counts."""
        self.episodes += 1
        self.faults += trajectory.status.is_fault


async def soak(fleet: Fleet, minutes: float) -> list[Figure]:
    """Every sandbox plays for so many minutes; one in a hundred is killed each minute."""
    seconds = minutes * 60
    source = EndlessSource(fleet.tasks, fleet.world.seed, seconds)
    samples: list[Sample] = []
    watching = asyncio.create_task(_watch(samples, seconds / SAMPLES))
    killing = asyncio.create_task(_kill(fleet))
    path = fleet.world.home / f"runs/soak-{time.time_ns()}"
    try:
        with RunFolder.create(path, command="benchmark", settings={}, save_token_ids=False) as folder:
            await play_stream(
                stage_of(fleet).player(fleet.world.settings, temperature=1.0),
                source,
                concurrency=fleet.world.scale.sandboxes,
                on_trajectory=lambda trajectory: asyncio.wrap_future(
                    folder.trajectory(trajectory, phase="soak", iteration=1)
                ),
            )
    finally:
        for task in (watching, killing):
            task.cancel()
        await asyncio.gather(watching, killing, return_exceptions=True)
    # Episodes that run out at the end are no part of it: fewer sessions need less.
    steady = [sample for sample in samples if WARM_UP * seconds <= sample.at_s <= seconds]
    lags = [sample.lag_s for sample in steady]
    return [
        note("episodes", source.episodes, f"in {minutes:g} min"),
        exactly("episodes lost to faults", source.faults, 0),
        memory(steady, seconds),
        flat("open files", slack=8, values=[sample.files for sample in steady]),
        flat("threads", slack=2, values=[sample.threads for sample in steady]),
        flat("tasks of the event loop", slack=8, values=[sample.tasks for sample in steady]),
        note("ms that the loop was late, at most", max(lags) * 1000, f"usually {statistics.median(lags) * 1000:.0f}"),
    ]


async def _watch(samples: list[Sample], every_s: float) -> None:
    began = time.monotonic()
    while True:
        lag = 0.0
        due = time.monotonic() + every_s
        while (now := time.monotonic()) < due:
            pause = min(LAG_S, due - now)
            await asyncio.sleep(pause)
            lag = max(lag, time.monotonic() - now - pause)
        samples.append(
            Sample(
                at_s=time.monotonic() - began,
                memory_mib=resident_mib(os.getpid()),
                files=open_files(),
                threads=threading.active_count(),
                tasks=len(asyncio.all_tasks()),
                lag_s=lag,
            )
        )


async def _kill(fleet: Fleet) -> None:
    while True:
        await asyncio.sleep(60.0)
        await fleet.world.loopback.async_control.kill(share=KILLED_A_MINUTE)


def memory(samples: Sequence[Sample], seconds: float) -> Figure:
    """By the slope of a line through all samples; of a short run, which says nothing about an hour, the difference."""
    values = [sample.memory_mib for sample in samples]
    span = f"from {values[0]:.0f} to {values[-1]:.0f} MiB after {WARM_UP:.0%} warm-up"
    if seconds < SHORTEST_FOR_A_RATE_S:
        return at_most("MiB of growth", values[-1] - values[0], SHORT_MEMORY_MIB, span)
    slope = statistics.linear_regression([sample.at_s for sample in samples], values).slope
    return at_most("growth of memory an hour", slope * 3600 / values[0], MEMORY_PER_HOUR, span)


def flat(what: str, values: Sequence[int], *, slack: float) -> Figure:
    """The medians of the first and the last third differ by no more than 2 %, or what comes and goes anyway."""
    third = max(1, len(values) // 3)
    first, last = statistics.median(values[:third]), statistics.median(values[-third:])
    return at_most(f"growth of {what}", last - first, max(slack, 0.02 * first), f"from {first:g} to {last:g}")
