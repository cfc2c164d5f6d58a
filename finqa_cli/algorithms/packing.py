"""Division of samples into optimizer steps, and of a step into micro-batches that fit a token budget. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from finqa_cli.types import Batch, Passes, Sample


def step_rows(samples: int, passes: Passes, *, seeds: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """For each step, the indices of its samples. Within an epoch every sample is in exactly one step.

    Minibatches have nearly equal sizes. Empty ones are left out, so there may be fewer than `passes.minibatches`.

    Args:
        samples: Number of samples.
        passes: Epochs and minibatches.
        seeds: For each epoch, the seed of its order. Empty: samples keep their order, and each minibatch takes every
            n-th sample, so that a group is spread over the minibatches.

    Raises:
        ValueError: There are seeds, but not one for each epoch.
    """
    if seeds and len(seeds) != passes.epochs:
        raise ValueError(f"{len(seeds)} seeds for {passes.epochs} epochs")
    steps: list[tuple[int, ...]] = []
    for epoch in range(passes.epochs):
        order = list(range(samples))
        if seeds:
            random.Random(seeds[epoch]).shuffle(order)
        steps += [rows for start in range(passes.minibatches) if (rows := tuple(order[start :: passes.minibatches]))]
    return steps


def pack(samples: Sequence[Sample], *, token_budget: int, max_rows: int, padded: bool = True) -> Batch:
    """Divide the samples into micro-batches; every sample is in exactly one. Equal input gives equal output.

    With padding, a micro-batch is a rectangle of samples of similar length, with rows x longest within the budget.
    Without padding it is one row, with the sum of its tokens within the budget. Samples with the same beginning are
    then neighbours, because learners compute a shared beginning once. A sample longer than the budget is a micro-batch
    of its own. The largest micro-batches come first, so that an out-of-memory error occurs in the first forward pass.

    Args:
        samples: Samples of one step.
        token_budget: Most tokens of a micro-batch, padding included.
        max_rows: Most samples of a micro-batch.
        padded: Whether the learner pads a micro-batch to a rectangle; see `Learner.packs`.

    Raises:
        ValueError: The budget or the row limit is below 1.
    """
    if token_budget < 1 or max_rows < 1:
        raise ValueError(f"token_budget and max_rows must be at least 1, not {token_budget} and {max_rows}")
    if padded:
        microbatches = list(_rectangles(samples, token_budget, max_rows))
    else:
        rows = _rows(samples, token_budget, max_rows)
        microbatches = sorted(rows, key=lambda row: -sum(len(samples[index].token_ids) for index in row))
    loss_tokens = sum(sample.loss_tokens for sample in samples)
    return Batch(samples=tuple(samples), microbatches=tuple(microbatches), loss_tokens=loss_tokens)


def _rectangles(samples: Sequence[Sample], token_budget: int, max_rows: int) -> Iterator[tuple[int, ...]]:
    order = sorted(range(len(samples)), key=lambda index: (-len(samples[index].token_ids), index))
    start = 0
    while start < len(order):
        longest = max(1, len(samples[order[start]].token_ids))
        rows = min(max_rows, max(1, token_budget // longest))
        yield tuple(order[start : start + rows])
        start += rows


def _rows(samples: Sequence[Sample], token_budget: int, max_rows: int) -> Iterator[tuple[int, ...]]:
    # Big-endian bytes sort like the tuples of ids, because ids are never negative.
    order = sorted(range(len(samples)), key=lambda index: (samples[index].token_ids.astype(">i4").tobytes(), index))
    part: list[int] = []
    used = 0
    for index in order:
        length = len(samples[index].token_ids)
        if part and (used + length > token_budget or len(part) == max_rows):
            yield tuple(part)
            part, used = [], 0
        part.append(index)
        used += length
    if part:
        yield tuple(part)
