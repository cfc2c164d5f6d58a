"""A full device: how micro-batches become smaller, and the errors where that does not help."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

import torch

from finqa_cli.errors import DeviceMemoryError
from finqa_cli.types import Sample

MORE_ROOM = "more --learner-processes, a smaller model, or fewer models on the device (finqa doctor)"
_OUT_OF_MEMORY = re.compile(r"out of memory|ALLOC_FAILED", re.IGNORECASE)


def count_tokens(rows: Sequence[int], samples: Sequence[Sample], *, packed: bool) -> int:
    """Tokens of a micro-batch: packed those of its samples, otherwise rows times the longest."""
    lengths = [len(samples[row].token_ids) for row in rows]
    return sum(lengths) if packed else len(rows) * max(lengths)


def cut(
    microbatches: Sequence[Sequence[int]], samples: Sequence[Sample], budget: int, *, packed: bool, pairs: bool
) -> list[list[int]]:
    """The micro-batches, each of more than `budget` tokens cut into parts that have at most as many.

    Rows stay in order. A row that is longer than the budget is a part of its own, and so is with `pairs` a pair.

    Args:
        microbatches: Indices into `samples`.
        samples: Of the batch.
        budget: In tokens, as `count_tokens` counts them; 0 cuts nothing.
        packed: See `count_tokens`.
        pairs: Rows are whole pairs, those of the chosen attempt (advantages above 0) before those of the rejected.
    """
    if not budget:
        return [list(rows) for rows in microbatches]
    return [part for rows in microbatches for part in _parts(rows, samples, budget, packed, pairs)]


def units(rows: Sequence[int], samples: Sequence[Sample], *, pairs: bool) -> list[list[int]]:
    """What cannot be cut further: each row, or with `pairs` the rows of each pair."""
    found: list[list[int]] = []
    rejected = True
    for row in rows:
        chosen = max(samples[row].advantages, default=0.0) > 0
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
    """Names work that fails for lack of memory and cannot be done in smaller parts.

    Raises:
        DeviceMemoryError: It fails so.
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
    """Whether a device's memory is full. cuBLAS, Triton, NCCL and CUDA itself say so only in words."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    )


def first_line(error: BaseException) -> str:
    """The first sentence or line of what PyTorch says."""
    return str(error).split("\n")[0].split(". ")[0].rstrip(".") or type(error).__name__


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
