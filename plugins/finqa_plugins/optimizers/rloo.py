"""RLOO: a member's advantage is its reward less the mean reward of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from finqa_cli.types import Credit, Group, IdleOption, KlPenalty, LossSpec
from finqa_plugins.optimizers.clip_options import MORE_STEPS, PolicyGradientOptions
from finqa_plugins.optimizers.idle import idle_options
from finqa_plugins.optimizers.reward_shaping import divided_by_batch_std, group_credit, mean


class RlooConfig(PolicyGradientOptions):
    """Options of `rloo`."""

    baseline: Literal["leave_one_out", "mean"] = Field(
        default="leave_one_out", description="Mean reward of the other members, or of all of them."
    )
    whiten_rewards: bool = Field(
        default=False, description="Whiten the rewards over the groups that are trained on before the baseline."
    )
    clip_low: float = Field(default=0.2, ge=0, lt=1, description="Ratio is clipped below 1 - this; 0: not.")
    clip_high: float = Field(default=0.2, ge=0, description="Ratio is clipped above 1 + this; 0: not.")
    minimum_members: int = Field(default=2, ge=2, description="Groups with fewer scored members are dropped.")


class Rloo:
    """REINFORCE with a leave-one-out baseline.

    A_i = r_i - mean of r_j over j != i = K / (K - 1) (r_i - mean(r)) for the K scored members of a group. Unlike the
    mean of all, the baseline does not depend on the member's own reward, so the gradient is unbiased. With
    `whiten_rewards` r is (reward - mean) / (population std + 1e-8) over the batch.

    Sources: Kool et al., "Buy 4 REINFORCE samples, get a baseline for free!" (2019); Ahmadian et al., arXiv
    2402.14740, section 3.3. Where the policy is the one that sampled, the gradient is theirs; elsewhere PPO's clip
    bounds the ratio of each token. Theirs is summed over the tokens of an episode: normalization=constant with
    normalization_length=1; the default differs by one factor for the whole batch.
    """

    def __init__(self, config: RlooConfig) -> None:
        self._config = config

    def credit(self, group: Group) -> Credit:
        """Faulted and ungraded members are excluded; a group without spread in its rewards is dropped.

        Raises:
            FinqaError: A reward is not a finite number.
        """
        return group_credit(group, self._advantages, minimum_members=self._config.minimum_members)

    def batch_credit(self, groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
        """Whitens where that is asked for."""
        return divided_by_batch_std(groups, credits) if self._config.whiten_rewards else tuple(credits)

    def kl_penalty(self) -> KlPenalty | None:
        """What is taken from each reward."""
        return self._config.kl_penalty()

    def idle_options(self, steps: int) -> tuple[IdleOption, ...]:
        """Clips of a single step, and a KL that is off."""
        return idle_options(self._config, self.loss(), steps=steps, more_steps=MORE_STEPS)

    def loss(self) -> LossSpec:
        """The clipped policy gradient."""
        return self._config.loss_spec(
            "policy_gradient", clip_low=self._config.clip_low, clip_high=self._config.clip_high
        )

    def _advantages(self, rewards: list[float]) -> list[float]:
        members = len(rewards)
        factor = members / (members - 1) if self._config.baseline == "leave_one_out" else 1.0
        centre = mean(rewards)
        return [factor * (reward - centre) for reward in rewards]
