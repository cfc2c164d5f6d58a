"""Micro-batches: splitting for lack of memory, distribution over processes, and search for one that is not finite."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from finqa_cli.errors import DeviceMemoryError
from finqa_cli.types import Batch, FloatRow, Sample
from finqa_plugins.learners.torch.packed_rows import SHORTEST_SHARED

MORE_ROOM = "more --learner-processes, a smaller model, or fewer models on the device (finqa doctor)"
_ROWS = ("logprobs", "advantages", "proximal_logprobs", "reference_logprobs", "values", "returns")
_NAMED = 5
_OUT_OF_MEMORY = re.compile(r"out of memory|ALLOC_FAILED", re.IGNORECASE)


def count_tokens(rows: Sequence[int], samples: Sequence[Sample], *, packed: bool) -> int:
    """Tokens that are computed for a micro-batch: with padding rows times the longest sample.

    Packed, they are the sum over its samples, without beginnings that a sample has in common with the one before it:
    those are computed once.
    """
    ids = [samples[row].token_ids for row in rows]
    if not packed:
        return len(rows) * max(map(len, ids))
    shared = [_shared(first, second) for first, second in itertools.pairwise(ids)]
    return sum(map(len, ids)) - sum(length for length in shared if length >= SHORTEST_SHARED)


def _shared(first: npt.NDArray[np.int32], second: npt.NDArray[np.int32]) -> int:
    length = min(len(first), len(second))
    differing = np.flatnonzero(first[:length] != second[:length])
    return int(differing[0]) if len(differing) else length


def cut(
    microbatches: Sequence[Sequence[int]], samples: Sequence[Sample], budget: int, *, packed: bool, pairs: bool
) -> list[list[int]]:
    """The micro-batches; those with more than `budget` tokens are cut into parts of at most `budget` tokens.

    Rows stay in order. A row (with `pairs`, a pair) that is longer than the budget is a separate part.

    Args:
        microbatches: Indices into `samples`.
        samples: Samples of the batch.
        budget: Tokens, as `count_tokens` counts them; 0 cuts nothing.
        packed: Whether sequences are in one row; see `count_tokens`.
        pairs: Whether rows are whole pairs, those of the chosen attempt (advantages above 0) before those of the
            rejected.
    """
    if not budget:
        return [list(rows) for rows in microbatches]
    return [part for rows in microbatches for part in _parts(rows, samples, budget, packed, pairs)]


def units(rows: Sequence[int], samples: Sequence[Sample], *, pairs: bool) -> list[list[int]]:
    """The smallest parts of a micro-batch: each row, or with `pairs` the rows of each pair."""
    found: list[list[int]] = []
    rejected = True
    for row in rows:
        chosen = bool(samples[row].advantages.max(initial=0.0) > 0)
        if not pairs or (chosen and rejected):
            found.append([row])
        else:
            found[-1].append(row)
        rejected = not chosen
    return found


def too_long(rows: Sequence[int], samples: Sequence[Sample], device: torch.device, reason: str) -> DeviceMemoryError:
    """The error for sequences that cannot be cut further."""
    named = " and ".join(
        f"{f'episode {samples[row].episode!r}' if samples[row].episode else f'sample {row}'} "
        f"({len(samples[row].token_ids):,} tokens)"
        for row in rows
    )
    return DeviceMemoryError(
        f"The memory of {device} is too small for {named}, which cannot be split further ({reason}).",
        remedy="a new run with a smaller --max-gen-tokens, --max-steps or data.max_prompt_tokens, with "
        "--gradient-checkpointing, or with more --learner-processes",
    )


@contextlib.contextmanager
def named(work: str, device: torch.device | str) -> Iterator[None]:
    """Reports work that fails for lack of memory and cannot be done in smaller parts.

    Raises:
        DeviceMemoryError: The memory of the device is full.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceMemoryError(
            f"The memory of {device} is full while {work} ({first_line(error)}).", remedy=MORE_ROOM
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device's memory is full. cuBLAS, Triton, NCCL and CUDA itself report it only in the message."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    )


def first_line(error: BaseException) -> str:
    """The first sentence or line of PyTorch's message."""
    return str(error).split("\n")[0].split(". ")[0].rstrip(".") or type(error).__name__


def own_micro_batches(
    batches: Sequence[Sequence[int]], samples: Sequence[Sample], *, rank: int, processes: int
) -> Iterator[tuple[Sequence[int], bool]]:
    """The micro-batches of this process, each with whether its result must be dropped.

    Every process has as many rounds as the others, because sharded weights are gathered in each: a process without
    a micro-batch computes the shortest sample and drops the result.
    """
    if processes == 1:
        yield from ((rows, False) for rows in batches)
        return
    costs = [sum(len(samples[row].token_ids) for row in rows) for rows in batches]
    spare = min((row for rows in batches for row in rows), key=lambda row: len(samples[row].token_ids), default=0)
    for job in distribute_jobs(costs, processes)[rank]:
        yield ([spare], True) if job is None else (batches[job], False)


def distribute_jobs(costs: Sequence[int], processes: int) -> list[list[int | None]]:
    """Assigns jobs to processes in rounds of similar costs, because processes wait for each other in each round.

    Args:
        costs: Cost of each job.
        processes: Number of processes.

    Returns:
        [processes][rounds] indices into `costs`; None if a process has no job in a round.
    """
    order = sorted(range(len(costs)), key=lambda job: (-costs[job], job))
    result: list[list[int | None]] = [[] for _ in range(processes)]
    for number, start in enumerate(range(0, len(order), processes)):
        jobs: list[int | None] = [*order[start : start + processes]]
        jobs += [None] * (processes - len(jobs))
        for process, job in zip(result, reversed(jobs) if number % 2 else jobs, strict=True):
            process.append(job)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteCheck:
    """How to find the samples whose loss or gradient is not finite.

    Attributes:
        finite: Whether loss and gradient of these rows of the batch, as one micro-batch, are finite.
        logprobs: [N][L] of samples under the weights that failed.
        by_row: Whether each row has its own loss, independent of the other rows.
    """

    finite: Callable[[Sequence[int]], bool]
    logprobs: Callable[[Sequence[Sample]], Sequence[FloatRow]]
    by_row: bool


def describe_nonfinite(batch: Batch, check: FiniteCheck) -> str:
    """A sentence that names the first micro-batch that is not finite, its samples that are not finite, and where."""
    bearing = [[row for row in rows if batch.samples[row].loss_mask.any()] for rows in batch.microbatches]
    for number, rows in enumerate(bearing, start=1):
        if rows and not check.finite(rows):
            found = _samples(batch, rows, check)
            shown = ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
            return f"The first micro-batch with this error is {number} of {len(bearing)}: {shown}."
    return f"Each of its {len(bearing)} micro-batches alone is finite, only their sum is not."


def _samples(batch: Batch, rows: Sequence[int], check: FiniteCheck) -> list[str]:
    scored = check.logprobs([batch.samples[row] for row in rows])
    found = []
    for row, logprobs in zip(rows, scored, strict=True):
        sample = batch.samples[row]
        reason = _unfit_number(sample) or _place("log-probability", logprobs)
        if reason or (check.by_row and not check.finite([row])):
            found.append(_name(sample, row) + (f" ({reason})" if reason else ""))
    return found or [_name(batch.samples[row], row) for row in rows]


def _unfit_number(sample: Sample) -> str:
    if not math.isfinite(sample.weight):
        return f"weight {sample.weight}"
    carried = ((name, getattr(sample, name)) for name in _ROWS)
    reasons = (_place(name.removesuffix("s"), row) for name, row in carried if row is not None)
    return next(filter(None, reasons), "")


def _place(what: str, row: FloatRow) -> str:
    """Where the first number is not finite; empty if all are finite."""
    places = np.flatnonzero(~np.isfinite(row))
    return f"{what} {row[places[0]]} at token {places[0]} of {len(row)}" if len(places) else ""


def _name(sample: Sample, row: int) -> str:
    return f"sample {row}" + (f" of episode {sample.episode!r}" if sample.episode else "")


def _parts(
    rows: Sequence[int], samples: Sequence[Sample], budget: int, packed: bool, pairs: bool
) -> Iterator[list[int]]:
    part: list[int] = []
    for unit in units(rows, samples, pairs=pairs):
        if part and count_tokens([*part, *unit], samples, packed=packed) > budget:
            yield part
            part = []
        part = [*part, *unit]
    if part:
        yield part
