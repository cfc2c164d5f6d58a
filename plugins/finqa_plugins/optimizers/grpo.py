"""GRPO and its variants: the advantage of a member is its reward minus a baseline of its group.

The base class of policy gradients, `PolicyGradient`, is here too. The loss is
`finqa_cli.algorithms.losses.PolicyGradientLoss`, which `finqa_plugins.learners.torch.policy_loss` computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_cli.contracts import Optimizer
from finqa_cli.errors import FinqaError
from finqa_cli.types import Credit, Group, IdleOption, KlEstimator, KlPenalty, Normalization

ZERO_VARIANCE = 1e-6
"""Rewards that differ by at most this count as equal: graders compute in floating point."""

_ONE_STEP = "with one optimizer step per iteration the ratio to the policy before it is exactly 1"


class PolicyGradientOptions(BaseModel):
    """Regularization and normalization of a policy gradient."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    normalization: Normalization = Field(
        default="trained",
        description="Normalization of the loss: trained (mean over tokens with an advantage), token (over all sampled "
        "tokens), sequence (mean of episode means), constant (token sums divided by normalization_length).",
    )
    normalization_length: float = Field(default=512, gt=0, description="Divisor of normalization=constant, in tokens.")
    kl: Literal["off", "reward", "loss"] = Field(default="off", description="Where the KL penalty is applied.")
    kl_coef: float = Field(default=0.05, gt=0, description="Coefficient of the KL to the policy before training.")
    kl_estimator: KlEstimator | None = Field(default=None, description="Estimator; unset: k1 in reward, k3 in loss")
    entropy_coef: float = Field(default=0, ge=0, description="Coefficient of the entropy bonus; 0: off.")

    @model_validator(mode="after")
    def _check_shared(self) -> Self:
        given = self.model_fields_set
        if self.kl == "off" and "kl" not in given and (useless := given & {"kl_coef", "kl_estimator"}):
            raise ValueError(f"{min(useless)} has no effect without kl=reward or kl=loss")
        if "normalization_length" in given and self.normalization != "constant":
            raise ValueError("normalization_length has no effect without normalization=constant")
        return self

    def make_loss(self, **fields: Any) -> PolicyGradientLoss:
        """The loss with these regularizers, this normalization and the given fields."""
        if self.kl == "loss":
            fields |= {"kl_coef": self.kl_coef, "kl_estimator": self.kl_estimator or "k3"}
        if self.normalization == "constant":
            fields["normalization_length"] = self.normalization_length
        return PolicyGradientLoss(normalization=self.normalization, entropy_coef=self.entropy_coef, **fields)


Options = TypeVar("Options", bound=PolicyGradientOptions)


class PolicyGradient(Optimizer, Generic[Options]):
    """Base class of policy gradients: KL in the reward, and the options without an effect."""

    more_steps = "--set train.updates_per_iteration=2"
    """Flags that lead to several optimizer steps per iteration."""

    def __init__(self, config: Options) -> None:
        self._config = config

    def kl_penalty(self) -> KlPenalty | None:
        """The KL penalty on each reward, or with a value function on each token's reward; None if there is none."""
        if self._config.kl != "reward":
            return None
        return KlPenalty(coefficient=self._config.kl_coef, estimator=self._config.kl_estimator or "k1")

    def idle_options(self, steps: int) -> tuple[IdleOption, ...]:
        """Options without effect: clips and forms of the ratio without a second step, and those of a KL that is off."""
        reasons = dict.fromkeys(self.loss().idle_fields(steps), _ONE_STEP)
        if reasons.pop("form", None):
            reasons |= self.idle_forms()
        found = [IdleOption(name=name, reason=reason, remedy=self.more_steps) for name, reason in reasons.items()]
        if self._config.kl == "off":
            idle = sorted({"kl_coef", "kl_estimator"} & self._config.model_fields_set)
            remedy = "--set optimizer.options.kl=loss"
            found += [IdleOption(name=name, reason="kl is off", remedy=remedy) for name in idle]
        return tuple(found)

    def idle_forms(self) -> dict[str, str]:
        """The options that set the form of the ratio -> the reason why they have no effect with a single step."""
        return {}


@dataclass(frozen=True, slots=True)
class Variant:
    """A published method as a preset.

    Attributes:
        defined: Options that make the method what it is: another value contradicts it.
        usual: Defaults of other options.
    """

    defined: Mapping[str, Any]
    usual: Mapping[str, Any] = field(default_factory=dict)


VARIANTS = {
    # DeepSeekMath, arXiv 2402.03300, equation 3 and section 4.1.2. Its KL term is option kl=loss, there with 0.04.
    "grpo": Variant({"normalization": "sequence", "ratio": "token"}, {"normalize_std": "group"}),
    # arXiv 2503.14476, equations 8 and 9; clips of section 4.1. Groups without signal are left out in any case.
    "dapo": Variant({"normalization": "token", "ratio": "token"}, {"normalize_std": "group", "clip_high": 0.28}),
    # arXiv 2503.20783, section 3.2: neither division by the deviation nor by the length of an episode.
    "dr_grpo": Variant({"normalization": "constant", "ratio": "token", "normalize_std": "none"}),
    # arXiv 2507.18071, equations 5 to 7; clips of section 5.1.
    "gspo": Variant(
        {"normalization": "sequence", "ratio": "sequence", "dual_clip": 0.0},
        {"normalize_std": "group", "clip_low": 3e-4, "clip_high": 4e-4},
    ),
    # MiniMax-M1, arXiv 2506.13585, equations 4 and 5, without a lower bound and with an unspecified upper one. 5, which
    # is 1 + clip_high, is in the range in which ScaleRL, arXiv 2510.13786, found no difference.
    "cispo": Variant(
        {"normalization": "token", "ratio": "token", "dual_clip": 0.0},
        {"normalize_std": "group", "clip_low": 0.0, "clip_high": 4.0},
    ),
}


class GrpoConfig(PolicyGradientOptions):
    """Options of `grpo`. Those that are unset take the value of the variant.

    Without a variant: Dr. GRPO's advantage, PPO's symmetric clip, and a mean over tokens with an advantage.
    """

    variant: Literal["grpo", "dapo", "dr_grpo", "gspo", "cispo"] | None = Field(
        default=None, description="A published method as a preset for options that are unset; grpo is DeepSeekMath's."
    )
    baseline: Literal["mean", "median"] = Field(
        default="mean", description="Baseline of the group; median is that of MC-GRPO, for small groups of odd size."
    )
    normalize_std: Literal["none", "group", "batch"] = Field(
        default="none", description="Divide advantages by the standard deviation of the rewards: none, group or batch."
    )
    ratio: Literal["token", "sequence"] = Field(
        default="token", description="Level of the importance ratio: per token, or the geometric mean over a sequence."
    )
    clip_low: float = Field(default=0.2, ge=0, lt=1, description="Clip the ratio below 1 - this value; 0: off.")
    clip_high: float = Field(default=0.2, ge=0, description="Clip the ratio above 1 + this value; 0: off.")
    dual_clip: float = Field(default=0.0, ge=0, description="Upper bound of the ratio for negative advantages; 0: off.")
    minimum_members: int = Field(default=2, ge=2, description="Groups with fewer scored attempts are dropped.")

    @model_validator(mode="before")
    @classmethod
    def _take_variant(cls, options: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in options.items() if value is not None}
        if isinstance(std := given.get("normalize_std"), bool):  # the older form of the option
            given["normalize_std"] = "group" if std else "none"
        variant = VARIANTS.get(str(given.get("variant")), Variant({}))
        return {**variant.defined, **variant.usual, **given}

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, defined in VARIANTS[self.variant].defined.items() if self.variant else ():
            if (given := getattr(self, name)) != defined:
                raise ValueError(f"{name}={given} contradicts variant={self.variant}, which has {defined}")
        if 0 < self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be 0 or above 1, not {self.dual_clip}")
        if self.dual_clip and self.ratio == "sequence":
            raise ValueError("dual_clip bounds ratios of tokens, but ratio=sequence")
        return self


class Grpo(PolicyGradient[GrpoConfig]):
    """Group-relative policy optimization.

    A_i = r_i - b over the scored members of a group, b their mean or median; with `normalize_std` divided by the
    (population std + 1e-8) of the rewards of the group, or of all groups that are used for training.

    Sources: DeepSeekMath, arXiv 2402.03300, equation 3 and section 4.1.2 (group std); Dr. GRPO, arXiv 2503.20783, for
    why the division biases towards very easy and very hard questions (off by default); REINFORCE++, arXiv 2501.03262,
    for the batch's; MC-GRPO, arXiv 2601.22582, for the median. Variants: see `VARIANTS`.
    """

    def credit(self, group: Group) -> Credit:
        """Credit within the group; see `group_credit`."""
        return group_credit(group, self.advantages, self._config.minimum_members)

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """[G] rewards minus the baseline, divided by the group's deviation with `normalize_std=group`."""
        baseline = fmean(rewards) if self._config.baseline == "mean" else median(rewards)
        scale = 1.0 / standard_deviation(rewards) if self._config.normalize_std == "group" else 1.0
        return [(reward - baseline) * scale for reward in rewards]

    def batch_credit(self, groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
        """Divides advantages by the batch's deviation with `normalize_std=batch`."""
        return divide_by_batch_std(groups, credits) if self._config.normalize_std == "batch" else tuple(credits)

    def loss(self) -> PolicyGradientLoss:
        """The clipped policy gradient, in the form of the variant."""
        config = self._config
        form = "cispo" if config.variant == "cispo" else {"token": "ppo", "sequence": "gspo"}[config.ratio]
        clips = {"clip_low": config.clip_low, "clip_high": config.clip_high, "dual_clip": config.dual_clip}
        return config.make_loss(form=form, **clips)

    def idle_forms(self) -> dict[str, str]:
        """A ratio of sequences, and variants that differ from another variant only by the form of their ratio."""
        found = {"ratio": _ONE_STEP} if self._config.ratio == "sequence" else {}
        other = {"gspo": "grpo", "cispo": "dapo"}.get(self._config.variant or "")
        return found | ({"variant": f"{_ONE_STEP}, so that {self._config.variant} is {other}"} if other else {})


def scored_rewards(group: Group) -> list[float | None]:
    """[G] the rewards; None for members that faulted or were never graded.

    Raises:
        FinqaError: A reward is not a finite number.
    """
    rewards = [None if trajectory.status.is_fault else trajectory.reward for trajectory in group.trajectories]
    for trajectory, reward in zip(group.trajectories, rewards, strict=True):
        if reward is not None and not math.isfinite(reward):
            raise FinqaError(f"Trajectory {trajectory.id!r} was graded with {reward}, which is not a finite number.")
    return rewards


def group_credit(
    group: Group, advantages: Callable[[Sequence[float]], Sequence[float]], minimum_members: int = 2
) -> Credit:
    """Credit by comparing the members of one group; faulted and ungraded members are excluded.

    Args:
        group: The group.
        advantages: Computes the advantages [G] of the scored members from their rewards [G].
        minimum_members: The group is dropped if fewer members were scored, or if their rewards are equal.

    Raises:
        FinqaError: A reward is not a finite number.
    """
    rewards = scored_rewards(group)
    scored = [reward for reward in rewards if reward is not None]
    dropped = ""
    if len(scored) < minimum_members:
        dropped = "too_few"
    elif max(scored) - min(scored) <= ZERO_VARIANCE:
        dropped = "zero_variance"
    found = iter([0.0] * len(scored) if dropped else advantages(scored))
    return Credit(advantages=tuple(None if reward is None else next(found) for reward in rewards), dropped=dropped)


def divide_by_batch_std(groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
    """Divides every advantage by the standard deviation of the rewards of the batch (see `standard_deviation`).

    Advantages that are differences of rewards are then those of whitened rewards, (r - mean) / std over the batch:
    the mean cancels.
    """
    kept = [group for group, credit in zip(groups, credits, strict=True) if not credit.dropped]
    rewards = [reward for group in kept for reward in scored_rewards(group) if reward is not None]
    std = standard_deviation(rewards) if rewards else 1.0
    return tuple(credit.map_advantages(lambda advantage: advantage / std) for credit in credits)


def standard_deviation(rewards: Sequence[float]) -> float:
    """The population standard deviation of rewards [G], plus 1e-8."""
    centre = fmean(rewards)
    return math.sqrt(math.fsum((reward - centre) ** 2 for reward in rewards) / len(rewards)) + 1e-8
