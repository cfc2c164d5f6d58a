"""REINFORCE and RLOO: policy gradients with a simple baseline."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from pydantic import Field

from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_cli.types import Credit, Group
from finqa_plugins.optimizers.grpo import (
    ZERO_VARIANCE,
    PolicyGradient,
    PolicyGradientOptions,
    divide_by_batch_std,
    group_credit,
    scored_rewards,
)


class ReinforceConfig(PolicyGradientOptions):
    """Options of `reinforce`."""

    baseline: Literal["none", "batch", "group"] = Field(
        default="none",
        description="Baseline that is subtracted from each reward: none, or the mean over batch or group.",
    )


class Reinforce(PolicyGradient[ReinforceConfig]):
    """The plain policy gradient.

    A_i = r_i - b with b = 0, the mean reward of the batch, or that of the group. The reward of an episode is the
    return of each of its tokens: there is no discount, and no ratio is clipped.

    Source: Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning"
    (1992), section 4.
    """

    def credit(self, group: Group) -> Credit:
        """Rewards, or with the group's baseline their differences from it; faulted and ungraded members are excluded.

        A group without gradient is dropped: none of its members was scored; without a baseline, all rewards are 0; with
        the group's baseline, all are equal. With the batch's baseline this is only known for the complete batch.

        Raises:
            FinqaError: A reward is not a finite number.
        """
        if self._config.baseline == "group":
            return group_credit(group, subtract_mean)
        rewards = tuple(scored_rewards(group))
        if all(reward is None for reward in rewards):
            return Credit(advantages=rewards, dropped="too_few")
        if self._config.baseline == "none" and all(abs(reward or 0.0) <= ZERO_VARIANCE for reward in rewards):
            return Credit(advantages=rewards, dropped="zero_variance")
        return Credit(advantages=rewards)

    def batch_credit(self, groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
        """Subtracts the batch's mean if that is the baseline."""
        batch = [credit.advantages for credit in credits if not credit.dropped]
        rewards = [reward for group in batch for reward in group if reward is not None]
        if self._config.baseline != "batch" or not rewards:
            return tuple(credits)
        baseline = fmean(rewards)
        return tuple(credit.map_advantages(lambda reward: reward - baseline) for credit in credits)

    def loss(self) -> PolicyGradientLoss:
        """The policy gradient without a clip."""
        return self._config.make_loss()


class RlooConfig(PolicyGradientOptions):
    """Options of `rloo`."""

    baseline: Literal["leave_one_out", "mean"] = Field(
        default="leave_one_out", description="Baseline: the mean reward of the other attempts, or of all attempts."
    )
    whiten_rewards: bool = Field(
        default=False, description="Whiten the rewards over all groups of an update before the baseline is subtracted."
    )
    clip_low: float = Field(default=0.2, ge=0, lt=1, description="Clip the ratio below 1 - this value; 0: off.")
    clip_high: float = Field(default=0.2, ge=0, description="Clip the ratio above 1 + this value; 0: off.")
    minimum_members: int = Field(default=2, ge=2, description="Groups with fewer scored attempts are dropped.")


class Rloo(PolicyGradient[RlooConfig]):
    """REINFORCE with a leave-one-out baseline.

    A_i = r_i - mean of r_j over j != i = K / (K - 1) (r_i - mean(r)) for the K scored members of a group. Unlike the
    mean of all, the baseline does not depend on the member's own reward, so the gradient is unbiased. With
    `whiten_rewards` r is (reward - mean) / (population std + 1e-8) over the batch.

    Sources: Kool et al., "Buy 4 REINFORCE samples, get a baseline for free!" (2019); Ahmadian et al., arXiv
    2402.14740, section 3.3. On policy the gradient is theirs; off policy PPO's clip
    bounds the ratio of each token. Theirs is summed over the tokens of an episode: normalization=constant with
    normalization_length=1; the default differs by one factor for the whole batch.
    """

    def credit(self, group: Group) -> Credit:
        """Credit within the group; see `group_credit`."""
        return group_credit(group, self.advantages, self._config.minimum_members)

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """[K] rewards minus the mean of the other members, or of all members."""
        members = len(rewards)
        factor = members / (members - 1) if self._config.baseline == "leave_one_out" else 1.0
        return [factor * advantage for advantage in subtract_mean(rewards)]

    def batch_credit(self, groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
        """Divides advantages by the batch's deviation with `whiten_rewards`."""
        return divide_by_batch_std(groups, credits) if self._config.whiten_rewards else tuple(credits)

    def loss(self) -> PolicyGradientLoss:
        """The clipped policy gradient."""
        return self._config.make_loss(clip_low=self._config.clip_low, clip_high=self._config.clip_high)


def subtract_mean(rewards: Sequence[float]) -> list[float]:
    """[G] the rewards of the scored members of a group minus their mean."""
    centre = fmean(rewards)
    return [reward - centre for reward in rewards]
