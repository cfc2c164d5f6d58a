"""REINFORCE: each attempt stands for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from finqa_cli.types import Credit, Group, IdleOption, KlPenalty, LossSpec
from finqa_plugins.optimizers.clip_options import MORE_STEPS, PolicyGradientOptions
from finqa_plugins.optimizers.idle import idle_options
from finqa_plugins.optimizers.reward_shaping import (
    ZERO_VARIANCE,
    batch_rewards,
    group_credit,
    mapped,
    mean,
    scored_rewards,
)


class ReinforceConfig(PolicyGradientOptions):
    """Options of `reinforce`."""

    baseline: Literal["none", "batch", "group"] = Field(
        default="none", description="What is taken from each reward: nothing, or the mean over batch or group."
    )


class Reinforce:
    """The plain policy gradient.

    A_i = r_i - b with b = 0, the mean reward of the batch, or that of the group. The reward of an episode is the
    return of each of its tokens: nothing is discounted, and no ratio is clipped.

    Source: Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning"
    (1992), section 4.
    """

    def __init__(self, config: ReinforceConfig) -> None:
        self._config = config

    def credit(self, group: Group) -> Credit:
        """Faulted and ungraded members are excluded.

        A group is dropped where it can move nothing: none of its members was scored; without a baseline, all rewards
        are 0; with the group's, they are equal. With the batch's that shows only when the batch is complete.

        Raises:
            FinqaError: A reward is not a finite number.
        """
        if self._config.baseline == "group":
            return group_credit(group, _centred, minimum_members=2)
        rewards = tuple(scored_rewards(group))
        if all(reward is None for reward in rewards):
            return Credit(advantages=rewards, dropped="too_few")
        if self._config.baseline == "none" and all(abs(reward or 0.0) <= ZERO_VARIANCE for reward in rewards):
            return Credit(advantages=rewards, dropped="zero_variance")
        return Credit(advantages=rewards)

    def batch_credit(self, groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
        """Takes the batch's mean off where that is the baseline."""
        rewards = batch_rewards(groups, credits)
        if self._config.baseline != "batch" or not rewards:
            return tuple(credits)
        baseline = mean(rewards)
        return mapped(credits, lambda advantage: advantage - baseline)

    def kl_penalty(self) -> KlPenalty | None:
        """What is taken from each reward."""
        return self._config.kl_penalty()

    def idle_options(self, steps: int) -> tuple[IdleOption, ...]:
        """Those of a KL that is off."""
        return idle_options(self._config, self.loss(), steps=steps, more_steps=MORE_STEPS)

    def loss(self) -> LossSpec:
        """The policy gradient without a clip."""
        return self._config.loss_spec("policy_gradient")


def _centred(rewards: list[float]) -> list[float]:
    centre = mean(rewards)
    return [reward - centre for reward in rewards]
