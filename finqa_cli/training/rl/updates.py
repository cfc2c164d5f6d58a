"""The learner's part of an iteration: from groups with credit to optimizer steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from finqa_cli.algorithms import (
    LengthLimit,
    References,
    assign_credit_again,
    attempt_weight,
    batch_credit,
    check_normalization,
    correct_off_policy,
    count_truncated,
    counts_neutral,
    credited_samples,
    estimated,
    length_penalty,
    mask_truncated,
    needs_anchor,
    needs_reference,
    normalized,
    pack,
    pads,
    penalize_length,
    penalized,
    references,
    scored_samples,
    step_rows,
    value_metrics,
    with_proximal,
    with_values,
)
from finqa_cli.contracts import (
    EstimatesAdvantages,
    Learner,
    Optimizer,
    PenalizesReward,
    ReferenceLearner,
    RepeatsPasses,
    ValueLearner,
)
from finqa_cli.errors import ConfigError
from finqa_cli.rollout.seeds import derive
from finqa_cli.settings import TrainSettings
from finqa_cli.types import AdvantageEstimation, Credit, Group, LossSpec, Passes, Sample, UpdateReport


def training_loss(optimizer: Optimizer, train: TrainSettings) -> LossSpec:
    """The optimizer's loss, corrected for the sampler as the settings ask.

    Raises:
        ConfigError: It cannot be corrected so, or its normalization is unknown.
    """
    loss = optimizer.loss()
    check_normalization(loss)
    return correct_off_policy(
        loss,
        mode=train.off_policy,
        max_staleness=train.max_staleness,
        cap=train.off_policy_cap,
        floor=train.off_policy_floor,
    )


def training_passes(optimizer: Optimizer, train: TrainSettings) -> Passes:
    """How each iteration's samples become steps: the optimizer's passes, else one in `updates_per_iteration` steps.

    Raises:
        ConfigError: The optimizer has passes of its own, and the settings ask for several steps as well.
    """
    if not isinstance(optimizer, RepeatsPasses):
        return Passes(epochs=1, minibatches=train.updates_per_iteration)
    if (steps := train.updates_per_iteration) > 1:
        raise ConfigError(
            f"train.updates_per_iteration={steps} has no effect with this optimizer, which says itself how many steps "
            "it takes.",
            remedy=f"--set train.updates_per_iteration=1 --set optimizer.options.minibatches={steps}",
        )
    return optimizer.passes()


def length_limit(train: TrainSettings, max_gen_tokens: int) -> LengthLimit | None:
    """Where completions are fined for their length; None where they are not.

    Raises:
        ConfigError: The buffer is longer than a completion may be.
    """
    if train.truncated != "penalize":
        return None
    buffer = train.overlong_buffer or max(1, max_gen_tokens // 5)
    if buffer > max_gen_tokens:
        raise ConfigError(
            f"train.overlong_buffer={buffer} is more than a completion may have (max_gen_tokens {max_gen_tokens}).",
            remedy=f"--set train.overlong_buffer={max(1, max_gen_tokens // 5)}",
        )
    return LengthLimit(longest=max_gen_tokens, buffer=buffer)


class Updates:
    """Takes the steps on each iteration's groups.

    Attributes:
        metrics: Metrics of the last iteration as a whole, beside its steps' reports: how good the values were, how far
            the steps went and how many were skipped, of methods with a value function or several passes; and how many
            episodes a limit ended, and their mean penalty, where they are masked or penalized.
    """

    def __init__(
        self, learner: Learner, optimizer: Optimizer, train: TrainSettings, *, max_gen_tokens: int = 0
    ) -> None:
        """Nothing is computed yet.

        Args:
            learner: Takes the steps.
            optimizer: Says how.
            train: Settings.
            max_gen_tokens: Longest completion, where it is penalized.

        Raises:
            ConfigError: As `training_loss`, `training_passes` and `length_limit`; or the optimizer wants a reference
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
        self._repeats = isinstance(optimizer, RepeatsPasses)
        self._estimation = optimizer.estimation() if isinstance(optimizer, EstimatesAdvantages) else None
        self._penalty = optimizer.kl_penalty() if isinstance(optimizer, PenalizesReward) else None
        self._reference: ReferenceLearner | None = None
        if self._penalty is not None or needs_reference(self._loss):
            if not isinstance(learner, ReferenceLearner):
                raise ConfigError(
                    f"Learner {type(learner).__name__} keeps no reference policy, which the optimizer's KL needs.",
                    remedy="--set optimizer.options.kl=off",
                )
            self._reference = learner
        if self._estimation is not None and not isinstance(learner, ValueLearner):
            raise ConfigError(
                f"Learner {type(learner).__name__} has no value function, which the optimizer's advantages need.",
                remedy="--optimizer grpo",
            )

    async def take(
        self, groups: Sequence[Group], credits: Sequence[Credit], *, iteration: int = 0
    ) -> AsyncIterator[UpdateReport]:
        """The report of each step; none when nothing can change the policy.

        The divergence that a step reports is that of the weights it met, so the step that shows that the target is
        reached is the last.

        Args:
            groups: Groups with one credit each.
            credits: Credits in the same order.
            iteration: Decides, with the seed, which samples each step of an optimizer with several passes takes.
        """
        samples = await self._samples(groups, credits)
        steps = step_rows(len(samples), self._passes, seeds=self._seeds(iteration))
        if needs_anchor(self._loss) and len(steps) > 1:
            # before the first step, whose weights are the anchor of every step; a single step meets them itself
            samples = with_proximal(samples, await asyncio.to_thread(self._learner.logprobs, samples))
        found = {**self._truncated, **(value_metrics(samples) if self._estimation is not None else {})}
        for number, rows in enumerate(steps, start=1):
            if weighted := normalized([samples[row] for row in rows], self._loss):
                report = await self._step(weighted)
                reached = self._passes.target_kl and _divergence(report) >= self._passes.target_kl
                if self._repeats:
                    skipped = len(steps) - number if reached else 0
                    found |= {"kl_last_step": _divergence(report), "updates_skipped": float(skipped)}
                yield report
                if reached:
                    break
        self.metrics = found

    async def _samples(self, groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Sample, ...]:
        self._truncated = {}
        if self._limit is not None:
            self._truncated = _penalties(groups, credits, self._limit)
            groups = penalize_length(groups, self._limit)
            credits = assign_credit_again(self._optimizer, groups, credits)
        known = await self._references(groups, credits)
        if known is not None and self._penalty is not None and self._estimation is None:
            groups = penalized(groups, known, self._penalty)
            credits = assign_credit_again(self._optimizer, groups, credits)
        credits = batch_credit(self._optimizer, groups, credits)
        if self._train.truncated == "mask":
            self._truncated = {"episodes_truncated": float(count_truncated(groups, credits))}
            credits = mask_truncated(groups, credits)
        samples = credited_samples(groups, credits, neutral=counts_neutral(self._loss), references=known)
        return samples if self._estimation is None else await self._estimated(samples, groups, self._estimation)

    async def _estimated(
        self, samples: tuple[Sample, ...], groups: Sequence[Group], estimation: AdvantageEstimation
    ) -> tuple[Sample, ...]:
        assert isinstance(self._learner, ValueLearner), "refused at the start"
        samples = with_values(samples, await asyncio.to_thread(self._learner.values, samples))
        members = [member for group in groups for member in group.trajectories]
        rewards = {member.id: member.reward for member in members if member.reward is not None}
        weights = {member.id: attempt_weight(member) for member in members}
        return estimated(samples, rewards, estimation, self._penalty, weights)

    async def _references(self, groups: Sequence[Group], credits: Sequence[Credit]) -> References | None:
        if self._reference is None:
            return None
        scored = scored_samples(groups, credits)
        samples = [sample for each in scored.values() for sample in each]
        return references(scored, await asyncio.to_thread(self._reference.reference_logprobs, samples))

    def _seeds(self, iteration: int) -> list[int]:
        """Returns the seed of each epoch's order; none where there is one pass in the order of the groups."""
        if not self._repeats:
            return []
        return [derive(self._train.seed, "epoch", iteration, epoch) for epoch in range(self._passes.epochs)]

    async def _step(self, samples: Sequence[Sample]) -> UpdateReport:
        train = self._train
        padded = await asyncio.to_thread(pads, self._learner)
        rows = train.grpo_update_batch_size
        batch = pack(samples, token_budget=train.token_budget, max_rows=rows, padded=padded)
        return await asyncio.to_thread(self._learner.update, batch, self._loss)


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
    """Mean KL per token from the anchor, or from the sampler where there is one step."""
    return report.metrics.get("kl_proximal", report.metrics.get("kl", 0.0))
