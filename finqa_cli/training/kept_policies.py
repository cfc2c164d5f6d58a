"""What training on a file keeps of its policies: checkpoints/step_N to go on from, best, and final."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Learner
from finqa_cli.errors import FinqaError
from finqa_cli.runs import checkpoints
from finqa_cli.settings import Settings
from finqa_cli.types import Batch, Loss, Sample, UpdateReport

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class BatchNames:
    """What a batch is made of, for errors: `pairs` or `demonstrations`, and their ids."""

    what: str
    ids: Sequence[str]

    def __str__(self) -> str:
        more = f" and {len(self.ids) - _SHOWN} more" if len(self.ids) > _SHOWN else ""
        return f"Its {self.what}: {', '.join(self.ids[:_SHOWN])}{more}."


def best_policy(run: Path) -> Path:
    """Where the policy lies that did best on what is held out."""
    return run / "checkpoints" / "best"


def final_policy(run: Path) -> Path:
    """Where the policy of the last step lies."""
    return run / "checkpoints" / "final"


def keep_step(
    learner: Learner, run: Path, step: int, state: Mapping[str, Any], *, is_best: bool, settings: Settings
) -> None:
    """Writes the policy and the learner's state as checkpoints/step_N, and before that the policy as best if it is.

    Args:
        learner: Whose weights they are.
        run: Folder of the run.
        step: Optimizer steps behind them.
        state: What a resumed run needs besides.
        is_best: It did better on what is held out than all before it.
        settings: `model.name` is what training began from; `train.keep_checkpoints` of step_N stay, at 0 all.

    Raises:
        StorageError: The disk is full or may not be written to.
    """
    if is_best:
        learner.publish(best_policy(run), step)
    facts = {"policy_version": step, "model": settings.model.name, **state}
    with checkpoints.writing(run, step, facts) as folder:
        learner.publish(folder / "policy", step)
        learner.save(folder / "learner")
    checkpoints.prune(run, settings.train.keep_checkpoints)


async def take_step(learner: Learner, batch: Batch, loss: Loss, *, names: BatchNames, run: Path) -> UpdateReport:
    """One optimizer step.

    Raises:
        FinqaError: Loss or gradient was not finite; the message names the batch and the newest checkpoint.
    """
    try:
        return await asyncio.to_thread(learner.update, batch, loss)
    except FinqaError as error:
        if type(error) is not FinqaError:
            raise
        raise not_finite(error.message, names, run) from error


async def check_weights(
    learner: Learner, samples: Sequence[Sample], step: int, *, names: BatchNames, run: Path
) -> None:
    """Looks whether the newest weights still give numbers, before they become a checkpoint.

    Raises:
        FinqaError: They do not.
    """
    rows = await asyncio.to_thread(learner.logprobs, samples)
    if not all(math.isfinite(logp) for row in rows for logp in row):
        raise not_finite(f"After step {step} the policy's log-probabilities are no finite numbers.", names, run)


def not_finite(reason: str, names: BatchNames, run: Path) -> FinqaError:
    """The error that names the batch and the newest policy that is good."""
    newest = checkpoints.latest(run)
    kept = f" The newest good policy is {newest.path}." if newest else ""
    return FinqaError(f"{reason} {names}{kept}", remedy="a lower --lr")
