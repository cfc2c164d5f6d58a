"""Which process takes which micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from finqa_cli.types import Sample
from finqa_plugins.learners.torch.distributed.process_group import Alone


def own_share(
    processes: Alone, batches: Sequence[Sequence[int]], samples: Sequence[Sample]
) -> Iterator[tuple[Sequence[int], bool]]:
    """What this process takes of the micro-batches, each of samples with loss.

    Every process has as many rounds as the others, for sharded weights are joined in each: where it has nothing left it
    takes the shortest sample, and is told that it is idle.
    """
    if processes.size == 1:
        yield from ((rows, False) for rows in batches)
        return
    costs = [sum(len(samples[row].token_ids) for row in rows) for rows in batches]
    spare = min((row for rows in batches for row in rows), key=lambda row: len(samples[row].token_ids), default=0)
    for job in shares(costs, processes.size)[processes.rank]:
        yield ([spare], True) if job is None else (batches[job], False)


def shares(costs: Sequence[int], processes: int) -> list[list[int | None]]:
    """Which job each process does in each round: like costs with like, because processes wait for each other.

    Args:
        costs: Of the jobs.
        processes: How many there are.

    Returns:
        [processes][rounds] indices into `costs`; None where a process has nothing left to do.
    """
    order = sorted(range(len(costs)), key=lambda job: (-costs[job], job))
    result: list[list[int | None]] = [[] for _ in range(processes)]
    for number, start in enumerate(range(0, len(order), processes)):
        jobs: list[int | None] = [*order[start : start + processes]]
        jobs += [None] * (processes - len(jobs))
        for process, job in zip(result, reversed(jobs) if number % 2 else jobs, strict=True):
            process.append(job)
    return result
