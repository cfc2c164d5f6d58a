"""PPO: advantages per token from a value function that is trained with the policy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_cli.types import AdvantageEstimation, Credit, Group, IdleOption, Passes
from finqa_plugins.optimizers.grpo import PolicyGradient, PolicyGradientOptions, scored_rewards


class PpoConfig(PolicyGradientOptions):
    """Options of `ppo`."""

    kl: Literal["off", "reward", "loss"] = Field(
        default="reward",
        description="Where the KL to the policy before training is subtracted: from each token's reward, in the "
        "loss, or not at all.",
    )
    gamma: float = Field(default=1.0, gt=0, le=1, description="Discount per sampled token.")
    lam: float = Field(default=0.95, ge=0, le=1, description="Lambda of GAE: 0 uses the next value, 1 the rewards.")
    whiten: bool = Field(
        default=True,
        description="Normalize advantages to mean 0 and standard deviation 1 over the tokens of an iteration.",
    )
    clip_low: float = Field(default=0.2, ge=0, lt=1, description="Clip the ratio below 1 - this value; 0: off.")
    clip_high: float = Field(default=0.2, ge=0, description="Clip the ratio above 1 + this value; 0: off.")
    value_coef: float = Field(default=0.1, gt=0, description="Coefficient of the value loss, next to the policy's.")
    value_clip: float = Field(
        default=0.2,
        ge=0,
        description="Largest change of a value in an iteration before its loss is clipped; 0: no limit.",
    )
    epochs: int = Field(default=4, ge=1, description="Number of passes over the samples of an iteration.")
    minibatches: int = Field(default=4, ge=1, description="Steps per epoch, each on a part of the samples.")
    target_kl: float = Field(
        default=0.02,
        ge=0,
        description="Mean KL per token, in nats, above which the remaining steps of an iteration are skipped; 0: off.",
    )


class Ppo(PolicyGradient[PpoConfig]):
    """Proximal policy optimization.

    Advantages are GAE(gamma, lam) over the sampled tokens of an episode, with the reward at the last token. The loss is
    the clipped policy gradient plus value_coef times the clipped value loss, with the regularizers. Groups only
    determine how often each question is asked.

    Sources: Schulman et al., arXiv 1707.06347, equations 7 and 9 and algorithm 1; GAE arXiv 1506.02438; Stiennon et
    al., arXiv 2009.01325, for the KL in the reward and GAE over tokens with these gamma and lam; OpenAI Spinning Up
    for the stop at a target KL.
    """

    more_steps = "--set optimizer.options.minibatches=4"

    def credit(self, group: Group) -> Credit:
        """1 for each scored member, which GAE later replaces per token; faulted and ungraded members are excluded.

        A group with equal rewards is kept, because rewards are compared with values.

        Raises:
            FinqaError: A reward is not a finite number.
        """
        advantages = tuple(None if reward is None else 1.0 for reward in scored_rewards(group))
        return Credit(advantages=advantages, dropped="" if any(advantages) else "too_few")

    def estimation(self) -> AdvantageEstimation:
        """GAE with the configured gamma, lambda and whitening."""
        return AdvantageEstimation(gamma=self._config.gamma, lam=self._config.lam, whiten=self._config.whiten)

    def passes(self) -> Passes:
        """Several epochs of several steps."""
        config = self._config
        return Passes(epochs=config.epochs, minibatches=config.minibatches, target_kl=config.target_kl)

    def idle_options(self, steps: int) -> tuple[IdleOption, ...]:
        """The options of the base class, and the stop at a target KL, which has no effect without a second step."""
        found = super().idle_options(steps)
        if steps > 1 or not self._config.target_kl:
            return found
        reason = "with one optimizer step per iteration there is none left to skip"
        return (*found, IdleOption(name="target_kl", reason=reason, remedy=self.more_steps))

    def loss(self) -> PolicyGradientLoss:
        """The clipped policy gradient with a value loss."""
        config = self._config
        return config.make_loss(
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            value_coef=config.value_coef,
            value_clip=config.value_clip,
        )
