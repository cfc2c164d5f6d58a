"""Which samples a loss or gradient that is no finite number came from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from finqa_cli.types import Batch, Sample

_CARRIED = ("logprobs", "advantages", "proximal_logprobs", "reference_logprobs", "values", "returns")
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How to find out.

    Attributes:
        finite: Whether loss and gradient of these rows of the batch, as one micro-batch, are finite.
        logprobs: [N][L] of samples under the weights that failed.
        apart: A row has a loss of its own, and need not stand with its neighbours.
    """

    finite: Callable[[Sequence[int]], bool]
    logprobs: Callable[[Sequence[Sample]], Sequence[Sequence[float]]]
    apart: bool


def culprit(batch: Batch, trial: Trial) -> str:
    """A sentence that names the first micro-batch that is not finite, its samples to blame and where they fail."""
    bearing = [[row for row in rows if any(batch.samples[row].loss_mask)] for rows in batch.microbatches]
    for number, rows in enumerate(bearing, start=1):
        if rows and not trial.finite(rows):
            found = _samples(batch, rows, trial)
            shown = ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
            return f"The first micro-batch to blame is {number} of {len(bearing)}: {shown}."
    return f"Each of its {len(bearing)} micro-batches alone is finite, only their sum is not."


def _samples(batch: Batch, rows: Sequence[int], trial: Trial) -> list[str]:
    scored = trial.logprobs([batch.samples[row] for row in rows])
    found = []
    for row, logprobs in zip(rows, scored, strict=True):
        sample = batch.samples[row]
        reason = _unfit_number(sample) or _place("log-probability", logprobs)
        if reason or (trial.apart and not trial.finite([row])):
            found.append(_name(sample, row) + (f" ({reason})" if reason else ""))
    return found or [_name(batch.samples[row], row) for row in rows]


def _unfit_number(sample: Sample) -> str:
    if not math.isfinite(sample.weight):
        return f"weight {sample.weight}"
    reasons = (_place(name.removesuffix("s"), getattr(sample, name)) for name in _CARRIED)
    return next(filter(None, reasons), "")


def _place(what: str, numbers: Sequence[float]) -> str:
    """Where the first number is not finite; empty when all are."""
    for place, number in enumerate(numbers):
        if not math.isfinite(number):
            return f"{what} {number} at token {place} of {len(numbers)}"
    return ""


def _name(sample: Sample, row: int) -> str:
    return f"sample {row}" + (f" of episode {sample.episode!r}" if sample.episode else "")
