"""What is seen of boxes and episodes while a run lasts: by a person on the screen, and in events.jsonl."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

from finqa_cli.rollout.pool import Pool, PoolListener, PoolStats
from finqa_cli.runs.reporter import Reporter
from finqa_cli.types import Trajectory

PHASE = "sandboxes"
INTERVAL_S = 1.0
LOOKS_BETWEEN_EVENTS = 10
LOOKS_AT_NEWS = 6
"""A reporter of lines skips what comes too soon after the last one; what is told for so long is shown in the end."""


@asynccontextmanager
async def watching(pool: Pool, size: int, reporter: Reporter, on_event: PoolListener) -> AsyncIterator[None]:
    """Shows the boxes by state for as long as the block lasts, and tells `on_event` of them as the event `pool`.

    Nothing for a pool without boxes.
    """
    if not size:
        yield
        return
    reporter.start(PHASE, size)
    watcher = asyncio.create_task(_watch(pool, reporter, on_event))
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        reporter.drop(PHASE)
        on_event("pool", asdict(pool.stats()))


class EpisodeCount:
    """Shows the episodes of a phase as they end, with what went wrong on the way."""

    def __init__(self, reporter: Reporter, phase: str, total: int | None) -> None:
        self._reporter = reporter
        self._phase = phase
        self._done = 0
        self._troubles: Counter[str] = Counter()
        reporter.start(phase, total)

    def add(self, trajectory: Trajectory) -> None:
        """One more has ended."""
        self._done += 1
        troubles = {
            "recoveries": trajectory.recoveries,
            "retries": trajectory.retries,
            "faults": int(trajectory.status.is_fault),
        }
        self._troubles.update(troubles)
        self._reporter.advance(self._phase, self._done, **_without_zeros(self._troubles))


async def _watch(pool: Pool, reporter: Reporter, on_event: PoolListener) -> None:
    """On a live display every second; elsewhere only when a box came up, failed or was lost."""
    seen: object = None
    told: PoolStats | None = None
    fresh = 0
    for look in itertools.count():
        stats = pool.stats()
        news = (stats.alive, stats.starting, stats.lost, stats.start_failures)
        fresh = fresh - 1 if news == seen else LOOKS_AT_NEWS
        seen = news
        if reporter.live or fresh > 0:
            reporter.advance(PHASE, stats.alive, **_fields(stats))
        if look % LOOKS_BETWEEN_EVENTS == 0 and stats != told:
            told = stats
            on_event("pool", asdict(stats))
        await asyncio.sleep(INTERVAL_S)


def _fields(stats: PoolStats) -> dict[str, object]:
    return _without_zeros(
        {
            "starting": stats.starting,
            "playing": stats.leased,
            "idle": stats.idle,
            "waiting": stats.waiting,
            "lost": stats.lost,
            "failed_starts": stats.start_failures,
        }
    )


def _without_zeros(numbers: dict[str, int]) -> dict[str, object]:
    """So that a quiet run shows a short line."""
    return {name: number for name, number in numbers.items() if number}
