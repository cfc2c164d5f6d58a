"""The update of an iteration: from groups with credit to optimizer steps of the learner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal

from pydantic import ValidationError

from finqa_cli.algorithms.credit import RewardChange, attempt_weight, credited_samples, final_credit
from finqa_cli.algorithms.gae import estimate_advantages, value_metrics
from finqa_cli.algorithms.losses import OffPolicy, PolicyGradientLoss, counts_neutral, weigh_samples
from finqa_cli.algorithms.packing import pack, step_rows
from finqa_cli.algorithms.penalties import (
    LengthLimit,
    References,
    count_truncated,
    length_penalty,
    mask_truncated,
    penalize_kl,
    penalize_length,
    rows_by_trajectory,
    scored_samples,
)
from finqa_cli.algorithms.samples import attach_rows
from finqa_cli.contracts import Learner, Optimizer
from finqa_cli.errors import ConfigError
from finqa_cli.rollout.seeds import derive
from finqa_cli.settings import TrainSettings
from finqa_cli.types import AdvantageEstimation, Credit, Group, Loss, Passes, Sample, UpdateReport

OFF_POLICY_BOUNDS: dict[OffPolicy, tuple[float, float]] = {
    "none": (0.0, 0.0),
    "token": (0.0, 2.0),
    "sequence": (0.0, 2.0),
    "icepop": (0.5, 5.0),
    "geometric": (0.99, 1.01),
}
"""Default floor and cap of each mode. token, sequence: default of verl; icepop: as published; geometric: SkyRL's."""


def training_loss(optimizer: Optimizer, train: TrainSettings) -> Loss:
    """Return the optimizer's loss with the off-policy correction of the settings.

    Raises:
        ConfigError: The loss has an invalid field, or does not support this correction.
    """
    try:
        loss = optimizer.loss()
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"Optimizer {optimizer.__class__.__name__} creates an invalid {error.title}: "
            f"{f'{field}: ' if field else ''}{reason}."
        ) from error
    return correct_off_policy(
        loss,
        mode=train.off_policy,
        max_staleness=train.max_staleness,
        cap=train.off_policy_cap,
        floor=train.off_policy_floor,
    )


def correct_off_policy(
    loss: Loss,
    *,
    mode: OffPolicy | Literal["auto"],
    max_staleness: int,
    cap: float | None = None,
    floor: float | None = None,
) -> Loss:
    """Return the optimizer's loss with a correction for a sampler that differs from the anchor.

    The sampler differs from the learner's weights for two reasons. Rollouts run ahead, so older weights sampled. And
    the engine rounds differently, so even equal weights give other log-probabilities.

    Args:
        loss: The optimizer's loss.
        mode: See `PolicyGradientLoss.off_policy`. `auto` means `token`, but keeps a correction that the loss already
            has. `token` is used at staleness 0 too: with one step per iteration, the gradient is then that of the ratio
            to the sampler, as long as no clip and no cap acts.
        max_staleness: Iterations that rollouts may run ahead of the learner.
        cap: Largest off-policy ratio, at least 1; None: default of the mode.
        floor: Smallest off-policy ratio of `icepop` and `geometric`, at most 1; None: default of the mode.

    Raises:
        ConfigError: The loss does not use the sampler's log-probabilities, or already has a correction of its own.
    """
    if not isinstance(loss, PolicyGradientLoss):
        if mode in ("auto", "none") and max_staleness == 0:
            return loss
        explicit = "" if mode == "auto" else " --set train.off_policy=auto"
        raise ConfigError(
            f"train.off_policy={mode} with max_staleness {max_staleness}: {type(loss).__name__} does not use the "
            "sampler's log-probabilities, so tokens sampled with older weights would be used without a correction.",
            remedy="--max-staleness 0" + explicit,
        )
    if loss.off_policy != "none":
        if mode == "auto":
            return loss
        raise ConfigError(
            f"train.off_policy={mode}, but the optimizer's loss has its own correction.",
            remedy="--set train.off_policy=auto",
        )
    chosen: OffPolicy = "token" if mode == "auto" else mode
    lowest, highest = OFF_POLICY_BOUNDS[chosen]
    bounds = {"off_policy_floor": lowest and (floor or lowest), "off_policy_cap": highest and (cap or highest)}
    return loss.model_copy(update={"off_policy": chosen, **bounds})


def training_passes(optimizer: Optimizer, train: TrainSettings) -> Passes:
    """Return the passes of an iteration: the optimizer's own, else one pass in `updates_per_iteration` steps.

    Raises:
        ConfigError: The optimizer has its own passes, and the settings request several steps too.
    """
    steps, passes = train.updates_per_iteration, optimizer.passes()
    if passes is None:
        return Passes(epochs=1, minibatches=steps)
    if steps > 1:
        raise ConfigError(
            f"train.updates_per_iteration={steps} has no effect with this optimizer, which sets its "
            "own number of steps.",
            remedy=f"--set train.updates_per_iteration=1 --set optimizer.options.minibatches={steps}",
        )
    return passes


def length_limit(train: TrainSettings, max_gen_tokens: int) -> LengthLimit | None:
    """Return the lengths at which completions are penalized; None if they are not.

    Raises:
        ConfigError: The buffer is longer than the longest completion.
    """
    if train.truncated != "penalize":
        return None
    buffer = train.overlong_buffer or max(1, max_gen_tokens // 5)
    if buffer > max_gen_tokens:
        raise ConfigError(
            f"train.overlong_buffer={buffer} is more than the longest completion (max_gen_tokens {max_gen_tokens}).",
            remedy=f"--set train.overlong_buffer={max(1, max_gen_tokens // 5)}",
        )
    return LengthLimit(longest=max_gen_tokens, buffer=buffer)


class Updates:
    """Takes the optimizer steps on the groups of each iteration. Samples and batches are made in threads.

    Attributes:
        metrics: Metrics of the last iteration in addition to the reports of its steps. With a value function: quality
            of the values. With the optimizer's own passes: KL divergence at the last step, and skipped steps. If
            truncated episodes are masked or penalized: their number, and the mean penalty.
    """

    def __init__(
        self, learner: Learner, optimizer: Optimizer, train: TrainSettings, *, max_gen_tokens: int = 0
    ) -> None:
        """Check the optimizer and the settings.

        Args:
            learner: Takes the steps.
            optimizer: The training method.
            train: Settings of training.
            max_gen_tokens: Longest completion in tokens, for the length penalty.

        Raises:
            ConfigError: See `training_loss`, `training_passes` and `length_limit`; or the optimizer needs a reference
                policy or a value function and the learner has none.
        """
        self.metrics: Mapping[str, float] = {}
        self._learner = learner
        self._optimizer = optimizer
        self._train = train
        self._loss = training_loss(optimizer, train)
        self._passes = training_passes(optimizer, train)
        self._limit = length_limit(train, max_gen_tokens)
        self._truncated: dict[str, float] = {}
        self._repeats = optimizer.passes() is not None
        self._estimation = optimizer.estimation()
        self._penalty = optimizer.kl_penalty()
        self._needs_reference = self._penalty is not None or self._loss.needs_reference
        if self._needs_reference and not learner.keeps_reference:
            raise ConfigError(
                f"Learner {learner.__class__.__name__} keeps no reference policy, which the optimizer's KL needs.",
                remedy="--set optimizer.options.kl=off",
            )
        if (self._estimation is not None or self._loss.needs_values) and not learner.has_value_function:
            raise ConfigError(
                f"Learner {learner.__class__.__name__} has no value function, which the optimizer's advantages need.",
                remedy="--optimizer grpo",
            )

    async def take(
        self, groups: Sequence[Group], credits: Sequence[Credit], *, iteration: int = 0
    ) -> AsyncIterator[UpdateReport]:
        """Take the steps of an iteration and yield the report of each; no report if no sample can change the policy.

        A step reports the KL divergence of the weights before it. So the first step that reports at least the target is
        the last one.

        Args:
            groups: Groups with one credit each.
            credits: Credits in the same order.
            iteration: Number of the iteration. Together with the seed it determines the samples of each step, if the
                optimizer has its own passes.
        """
        samples = await self._make_samples(groups, credits)
        steps = step_rows(len(samples), self._passes, seeds=self._seeds(iteration))
        if self._loss.has_ratio and len(steps) > 1:
            # The weights before the first step are the anchor of every step. A single step needs no copy of them.
            samples = attach_rows(samples, proximal_logprobs=await asyncio.to_thread(self._learner.logprobs, samples))
        found = dict(self._truncated)
        if self._estimation is not None:
            found |= await asyncio.to_thread(value_metrics, samples)
        for number, rows in enumerate(steps, start=1):
            report = await asyncio.to_thread(self._step, [samples[row] for row in rows])
            if report is None:
                continue
            reached = self._passes.target_kl and _divergence(report) >= self._passes.target_kl
            if self._repeats:
                skipped = len(steps) - number if reached else 0
                found |= {"kl_last_step": _divergence(report), "updates_skipped": float(skipped)}
            yield report
            if reached:
                break
        self.metrics = found

    async def _make_samples(self, groups: Sequence[Group], admitted: Sequence[Credit]) -> tuple[Sample, ...]:
        known: References | None = None
        if self._needs_reference:
            scored = await asyncio.to_thread(scored_samples, groups, admitted)
            in_order = [sample for each in scored.values() for sample in each]
            rows = await asyncio.to_thread(self._learner.reference_logprobs, in_order)
            known = rows_by_trajectory(scored, rows)
        groups, samples = await asyncio.to_thread(self._credit_samples, groups, admitted, known)
        if self._estimation is None:
            return samples
        samples = attach_rows(samples, values=await asyncio.to_thread(self._learner.values, samples))
        return await asyncio.to_thread(self._estimate, samples, groups, self._estimation)

    def _credit_samples(
        self, groups: Sequence[Group], admitted: Sequence[Credit], known: References | None
    ) -> tuple[Sequence[Group], tuple[Sample, ...]]:
        """Return the groups with the rewards that they are trained with, and their samples."""
        changes: list[RewardChange] = []
        self._truncated = {}
        if (limit := self._limit) is not None:
            self._truncated = _penalties(groups, admitted, limit)
            changes.append(lambda groups: penalize_length(groups, limit))
        # With a value function the KL penalty is a reward of each token instead.
        if known is not None and (penalty := self._penalty) is not None and self._estimation is None:
            changes.append(lambda groups: penalize_kl(groups, known, penalty))
        groups, credits = final_credit(self._optimizer, groups, admitted, changes)
        if self._train.truncated == "mask":
            self._truncated = {"episodes_truncated": float(count_truncated(groups, credits))}
            credits = mask_truncated(groups, credits)
        neutral = counts_neutral(self._loss)
        return groups, credited_samples(groups, credits, neutral=neutral, references=known)

    def _estimate(
        self, samples: Sequence[Sample], groups: Sequence[Group], estimation: AdvantageEstimation
    ) -> tuple[Sample, ...]:
        members = [member for group in groups for member in group.trajectories]
        rewards = {member.id: member.reward for member in members if member.reward is not None}
        weights = {member.id: attempt_weight(member) for member in members}
        return estimate_advantages(samples, rewards, estimation, self._penalty, weights)

    def _seeds(self, iteration: int) -> list[int]:
        """Return the seed of each epoch's order; empty for one pass in the order of the groups."""
        if not self._repeats:
            return []
        return [derive(self._train.seed, "epoch", iteration, epoch) for epoch in range(self._passes.epochs)]

    def _step(self, samples: Sequence[Sample]) -> UpdateReport | None:
        """Take one optimizer step on the samples that can change the policy; return None if there are none."""
        train, weighed = self._train, weigh_samples(samples, self._loss)
        if not weighed:
            return None
        rows, padded = train.grpo_update_batch_size, not self._learner.packs()
        batch = pack(weighed, token_budget=train.token_budget, max_rows=rows, padded=padded)
        return self._learner.update(batch, self._loss)


def _penalties(groups: Sequence[Group], credits: Sequence[Credit], limit: LengthLimit) -> dict[str, float]:
    scored = [
        length_penalty(member, limit)
        for group, credit in zip(groups, credits, strict=True)
        if not credit.dropped
        for member, advantage in zip(group.trajectories, credit.advantages, strict=True)
        if advantage is not None
    ]
    mean = sum(scored) / len(scored) if scored else 0.0
    return {"episodes_truncated": float(count_truncated(groups, credits)), "length_penalty_mean": mean}


def _divergence(report: UpdateReport) -> float:
    """Return the mean KL divergence per token from the anchor, or from the sampler if there is only one step."""
    return report.metrics.get("kl_proximal", report.metrics.get("kl", 0.0))
