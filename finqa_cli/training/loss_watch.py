"""Notices a training run whose loss does not move: usually a learning rate that is far too low for what is trained."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from finqa_cli.types.run_events import RunEvent

SHARE = 0.2
"""Share of the steps after which the loss should have moved."""

FEWEST = 9
"""Fewest steps that are compared; after fewer, the differences between batches hide everything else."""

STEADY = 0.02
"""A loss that changes by less than this share of itself has not moved, however small its noise is."""

NOISE = 2.0
"""Standard errors that a change must exceed."""

LEARNED = 0.05
"""Loss in nats a token below which nothing is reported: the policy had learned the data before."""


class LossStuck(RunEvent):
    """The loss of a training run on a file had not moved after a fifth of its steps."""

    event: Literal["loss_stuck"]
    steps: int
    """Steps that were compared."""
    first: float
    """Mean loss of the first third of them."""
    last: float
    """Mean loss of the last third."""
    error: float
    """Standard error of the difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """The losses of a training run that did not move.

    Attributes:
        steps: Number of steps that were compared.
        first: Mean loss of the first third of the steps.
        last: Mean loss of the last third.
        error: Standard error of their difference.
    """

    steps: int
    first: float
    last: float
    error: float

    def words(self, learning_rate: float) -> str:
        """Return the warning, with the setting that changes it."""
        third = self.steps // 3
        return (
            f"The loss has not moved in {self.steps} steps: {self.first:.4f} in the first {third}, {self.last:.4f} in "
            f"the last {third} (standard error of the difference {self.error:.4f}), at a learning rate of "
            f"{learning_rate:g}. If the policy does not know the data already, stop and start again with a larger "
            f"rate: --lr {10 * learning_rate:g}"
        )


def compared_steps(total: int) -> int:
    """Return the number of steps after which the loss is looked at; 0: never, because a run is too short."""
    steps = max(FEWEST, math.ceil(SHARE * total))
    return steps if steps < total else 0


def find_stuck(losses: Sequence[float]) -> Stuck | None:
    """Compare the first third of the losses with the last; None if the loss fell.

    It fell if the difference exceeds both `NOISE` standard errors and `STEADY` of the loss. That the losses between
    two batches differ is in the standard error, which is taken from the spread within each third.
    """
    third = len(losses) // 3
    early, late = losses[:third], losses[-third:]
    first, last = statistics.fmean(early), statistics.fmean(late)
    error = math.sqrt((statistics.variance(early) + statistics.variance(late)) / third)
    if last < LEARNED or first - last > max(NOISE * error, STEADY * first):
        return None
    return Stuck(steps=len(losses), first=first, last=last, error=error)
