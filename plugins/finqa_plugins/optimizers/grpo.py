"""GRPO: a member's advantage is its reward less the mean reward of its group."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field

from finqa_cli.errors import FinqaError
from finqa_cli.types import Credit, Group, LossSpec, Trajectory

_ZERO_VARIANCE = 1e-6
_STD_FLOOR = 1e-8


class GrpoConfig(BaseModel):
    """Options of `grpo`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    normalize_std: bool = Field(
        default=False,
        description="Divide by the group's standard deviation, as DeepSeekMath does; off it is Dr. GRPO's advantage.",
    )
    clip_low: float = Field(default=0.2, ge=0, lt=1, description="Ratio is clipped below 1 - this; 0 turns it off.")
    clip_high: float = Field(default=0.2, ge=0, description="Ratio is clipped above 1 + this; 0 turns it off.")
    minimum_members: int = Field(default=2, ge=2, description="Groups with fewer scored members are dropped.")


class Grpo:
    """Group-relative policy optimization.

    A_i = r_i - mean(r) over the scored members of the group; with `normalize_std` divided by (population std + 1e-8).
    Sources: DeepSeekMath, arXiv 2402.03300, equation 3 and section 4.1.2 (with std); Dr. GRPO, arXiv 2503.20783, for
    why the division biases towards very easy and very hard questions (off by default).
    """

    def __init__(self, config: GrpoConfig) -> None:
        self._config = config

    def credit(self, group: Group) -> Credit:
        """Faulted and ungraded members are excluded; a group without spread in its rewards is dropped.

        Raises:
            FinqaError: A reward is not a finite number.
        """
        rewards = [_scored_reward(trajectory) for trajectory in group.trajectories]
        scored = [reward for reward in rewards if reward is not None]
        nothing = tuple(None if reward is None else 0.0 for reward in rewards)
        if len(scored) < self._config.minimum_members:
            return Credit(advantages=nothing, dropped="too_few")
        if max(scored) - min(scored) <= _ZERO_VARIANCE:
            return Credit(advantages=nothing, dropped="zero_variance")
        mean = math.fsum(scored) / len(scored)
        scale = 1.0
        if self._config.normalize_std:
            variance = math.fsum((reward - mean) ** 2 for reward in scored) / len(scored)
            scale = 1.0 / (math.sqrt(variance) + _STD_FLOOR)
        return Credit(advantages=tuple(None if reward is None else (reward - mean) * scale for reward in rewards))

    def loss(self) -> LossSpec:
        """The clipped policy gradient."""
        parameters = {"clip_low": self._config.clip_low, "clip_high": self._config.clip_high}
        return LossSpec(name="policy_gradient", parameters=parameters)


def _scored_reward(trajectory: Trajectory) -> float | None:
    reward = None if trajectory.status.is_fault else trajectory.reward
    if reward is not None and not math.isfinite(reward):
        raise FinqaError(f"Trajectory {trajectory.id!r} was graded with {reward}, which is not a finite number.")
    return reward
