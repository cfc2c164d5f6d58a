"""The learner's part of an iteration: from groups with credit to optimizer steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from finqa_cli.contracts import Learner, Optimizer
from finqa_cli.learn import corrected, credited_samples, is_decoupled, pack, with_proximal
from finqa_cli.settings import TrainSettings
from finqa_cli.types import Credit, Group, LossSpec, Sample, UpdateReport


def training_loss(optimizer: Optimizer, train: TrainSettings) -> LossSpec:
    """The optimizer's loss, corrected for tokens of older weights as the settings ask.

    Raises:
        ConfigError: It cannot be corrected so.
    """
    return corrected(
        optimizer.loss(), mode=train.off_policy, cap=train.off_policy_cap, max_staleness=train.max_staleness
    )


class Updates:
    """Takes `updates_per_iteration` steps on each iteration's groups."""

    def __init__(self, learner: Learner, optimizer: Optimizer, train: TrainSettings) -> None:
        """Nothing is computed yet. Raises as `training_loss`."""
        self._learner = learner
        self._train = train
        self._loss = training_loss(optimizer, train)

    async def take(self, groups: Sequence[Group], credits: Sequence[Credit]) -> AsyncIterator[UpdateReport]:
        """The report of each step; none when nothing can change the policy."""
        samples = credited_samples(groups, credits)
        parts = _parts(samples, self._train.updates_per_iteration)
        if is_decoupled(self._loss) and len(parts) > 1:
            # before the first step, whose weights are the proximal ones for every step
            samples = with_proximal(samples, await asyncio.to_thread(self._learner.logprobs, samples))
            parts = _parts(samples, self._train.updates_per_iteration)
        for part in parts:
            yield await self._step(part)

    async def _step(self, samples: Sequence[Sample]) -> UpdateReport:
        train = self._train
        batch = pack(samples, token_budget=train.token_budget, max_rows=train.grpo_update_batch_size)
        return await asyncio.to_thread(self._learner.update, batch, self._loss)


def _parts(samples: Sequence[Sample], count: int) -> list[Sequence[Sample]]:
    """At most `count` parts of nearly equal size, every group spread over them; none is empty."""
    parts = [samples[start::count] for start in range(count)]
    return [part for part in parts if part]
