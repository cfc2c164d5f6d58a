"""Division of sandboxes and attempts among rollout workers, and the sum of their pools' figures. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from finqa_cli.rollout.pool import PoolStats

CALL_S = 0.02
"""Seconds between the calls of two workers in the same direction: at most 50 calls per second in each direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSlot:
    """Times at which one of several workers calls, or is called.

    Workers take turns, so that one call has the reports of many attempts, and the controller never gets the calls of
    all workers at once.

    Attributes:
        number: Number of the worker.
        workers: Number of workers.
        seconds: Seconds between the calls of two workers.
    """

    number: int = 0
    workers: int = 1
    seconds: float = CALL_S

    def wait_s(self, now: float) -> float:
        """Return the seconds from `now`, a time in seconds, until the worker's next call."""
        return (self.number * self.seconds - now) % (self.workers * self.seconds)


def choose_worker(loads: Mapping[int, int], shares: Sequence[int]) -> int:
    """Return the number of the worker for one more attempt: the least loaded relative to its share, then the first.

    Args:
        loads: Attempts of each live worker; at least one.
        shares: Sandboxes of each worker.
    """
    return min(loads, key=lambda number: ((loads[number] + 1) / shares[number], number))


def share_out(total: int, workers: int) -> list[int]:
    """Return the number of sandboxes of each worker; the numbers differ by at most one."""
    return [total // workers + (number < total % workers) for number in range(workers)]


def sum_stats(figures: Iterable[PoolStats]) -> PoolStats:
    """Return the sum of each figure."""
    total: Counter[str] = Counter()
    for one in figures:
        total.update(asdict(one))
    return PoolStats(**total)


def ended_stats(stats: PoolStats) -> PoolStats:
    """Return the figures of a lost worker that still count: cumulative ones, with its sandboxes counted as lost."""
    return PoolStats(
        waits=stats.waits,
        waited_s=stats.waited_s,
        lost=stats.lost + stats.alive,
        replaced=stats.replaced,
        start_failures=stats.start_failures,
    )
