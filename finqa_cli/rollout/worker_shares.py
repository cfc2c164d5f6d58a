"""How sandboxes and attempts are divided among rollout workers, and figures of their pools together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from finqa_cli.rollout.pool import PoolStats


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
