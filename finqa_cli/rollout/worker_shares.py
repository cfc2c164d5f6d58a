"""How sandboxes and attempts are divided among rollout workers, and figures of their pools together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from finqa_cli.rollout.pool import PoolStats

CALL_S = 0.02
"""Seconds between the calls of two workers in the same direction: at most 50 calls a second each way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSlot:
    """When one of several workers calls, or is called: one after the other, so that one call has the news of many
    attempts, and the controller never has those of all workers at once.

    Attributes:
        number: Number of the worker.
        workers: Number of workers.
        seconds: Between two of them.
    """

    number: int = 0
    workers: int = 1
    seconds: float = CALL_S

    def wait_s(self, now: float) -> float:
        """Return the seconds until the worker's next call, by a clock in seconds."""
        return (self.number * self.seconds - now) % (self.workers * self.seconds)


def choose_worker(loads: Mapping[int, int], shares: Sequence[int]) -> int:
    """Return the worker for one more attempt: the least loaded for its share, then the first.

    Args:
        loads: Attempts of each live worker; at least one.
        shares: Sandboxes of each worker.
    """
    return min(loads, key=lambda number: ((loads[number] + 1) / shares[number], number))


def share_out(total: int, workers: int) -> list[int]:
    """Return the sandboxes of each worker, which differ by one at most."""
    return [total // workers + (number < total % workers) for number in range(workers)]


def sum_stats(figures: Iterable[PoolStats]) -> PoolStats:
    """Return the sum of each figure."""
    total: Counter[str] = Counter()
    for one in figures:
        total.update(asdict(one))
    return PoolStats(**total)


def ended_stats(stats: PoolStats) -> PoolStats:
    """Return what still counts of a worker that is gone: its sandboxes are lost."""
    return PoolStats(
        waits=stats.waits,
        waited_s=stats.waited_s,
        lost=stats.lost + stats.alive,
        replaced=stats.replaced,
        start_failures=stats.start_failures,
    )
