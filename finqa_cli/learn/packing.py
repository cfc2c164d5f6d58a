"""Samples -> batch: micro-batches that waste little padding and fit a budget."""

from __future__ import annotations

from collections.abc import Sequence

from finqa_cli.types import Batch, Sample


def pack(samples: Sequence[Sample], *, token_budget: int, max_rows: int) -> Batch:
    """Cuts the samples into micro-batches of similar length; every sample is in exactly one.

    A micro-batch is a rectangle: its rows are padded to the longest. Rows x longest stays within `token_budget`, and
    there are `max_rows` rows at most. A sample longer than the budget is a micro-batch of its own. The longest come
    first, so that running out of memory shows in the first forward and not in the last. Equal input, equal output.

    Raises:
        ValueError: The budget or the row limit is below 1.
    """
    if token_budget < 1 or max_rows < 1:
        raise ValueError(f"token_budget and max_rows must be at least 1, not {token_budget} and {max_rows}")
    order = sorted(range(len(samples)), key=lambda index: (-len(samples[index].token_ids), index))
    microbatches: list[tuple[int, ...]] = []
    start = 0
    while start < len(order):
        longest = max(1, len(samples[order[start]].token_ids))
        rows = min(max_rows, max(1, token_budget // longest))
        microbatches.append(tuple(order[start : start + rows]))
        start += rows
    loss_tokens = sum(sample.loss_tokens for sample in samples)
    return Batch(samples=tuple(samples), microbatches=tuple(microbatches), loss_tokens=loss_tokens)
