"""Which samples each optimizer step of an iteration takes. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from finqa_cli.types import Passes


def step_rows(samples: int, passes: Passes, *, seeds: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """For each step the indices of its samples; within an epoch every sample is in exactly one.

    Minibatches are of nearly equal size and none is empty, so there may be fewer than asked for.

    Args:
        samples: How many there are.
        passes: Epochs and minibatches.
        seeds: One for each epoch, whose order it decides. Empty: in order, every group spread over the minibatches.

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
