"""GRPO and its variants: a member's advantage is its reward less that of its group.

What it shares with other policy gradients is here as well: `PolicyGradient` with its options. The loss is
`finqa_cli.algorithms.losses.PolicyGradientLoss`, which `finqa_plugins.learners.torch.policy_loss` computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_cli.contracts import Optimizer
from finqa_cli.errors import FinqaError
from finqa_cli.types import Credit, Group, IdleOption, KlEstimator, KlPenalty, Normalization

ZERO_VARIANCE = 1e-6
"""Rewards that differ by no more than this are equal: graders compute in floating point."""

_STD_FLOOR = 1e-8
_USUAL_LENGTH = 512
_ONE_STEP = "with one optimizer step per iteration the ratio to the policy before it is exactly 1"


class PolicyGradientOptions(BaseModel):
    """Regularization and normalization of a policy gradient."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    normalization: Normalization | None = Field(
        default=None,
        description="What the loss is a mean over: trained (tokens with an advantage), token (those without one "
        "counted as well), sequence (each episode's mean), constant (token sums over normalization_length).",
    )
    normalization_length: float | None = Field(
        default=None, gt=0, description=f"Divisor of normalization=constant, in tokens; unset: {_USUAL_LENGTH}."
    )
    kl: Literal["off", "reward", "loss"] = Field(
        default="off", description="Where the divergence from the policy that training began from is taken off."
    )
    kl_coef: float = Field(default=0.05, gt=0, description="Coefficient of the divergence.")
    kl_estimator: KlEstimator | None = Field(default=None, description="unset: k1 in the reward, k3 in the loss.")
    entropy_coef: float = Field(
        default=0.0, ge=0, description="Coefficient of the policy's entropy, which is raised; 0: off."
    )

    @model_validator(mode="after")
    def _check_shared(self) -> Self:
        given = self.model_fields_set
        if useless := sorted({"kl_coef", "kl_estimator"} & given) if self.kl == "off" and "kl" not in given else []:
            raise ValueError(f"{useless[0]} has no effect without kl=reward or kl=loss")
        if self.normalization_length is not None and self.mean_over() != "constant":
            raise ValueError("normalization_length has no effect without normalization=constant")
        return self

    def mean_over(self) -> Normalization:
        """The normalization that applies."""
        return self.normalization or "trained"

    def make_loss(self, **fields: Any) -> PolicyGradientLoss:
        """The loss with these regularizers, this normalization and the given fields."""
        constant = self.mean_over() == "constant"
        if self.kl == "loss":
            fields |= {"kl_coef": self.kl_coef, "kl_estimator": self.kl_estimator or "k3"}
        return PolicyGradientLoss(
            normalization=self.mean_over(),
            normalization_length=(self.normalization_length or _USUAL_LENGTH) if constant else 0.0,
            entropy_coef=self.entropy_coef,
            **fields,
        )


class PolicyGradient(Optimizer):
    """What policy gradients share: credit by group, KL in the reward, and which options have no effect."""

    minimum_members = 2
    """Groups with fewer scored members are dropped."""
    more_steps = "--set train.updates_per_iteration=2"
    """Flags that bring several optimizer steps."""

    def __init__(self, config: PolicyGradientOptions) -> None:
        self._options = config

    def credit(self, group: Group) -> Credit:
        """Excludes faulted and ungraded members; drops a group that has too few others, or no spread in their rewards.

        Raises:
            FinqaError: A reward is not a finite number.
        """
        rewards = scored_rewards(group)
        scored = [reward for reward in rewards if reward is not None]
        nothing = tuple(None if reward is None else 0.0 for reward in rewards)
        if len(scored) < self.minimum_members:
            return Credit(advantages=nothing, dropped="too_few")
        if max(scored) - min(scored) <= ZERO_VARIANCE:
            return Credit(advantages=nothing, dropped="zero_variance")
        advantages = iter(self.advantages(scored))
        return Credit(advantages=tuple(None if reward is None else next(advantages) for reward in rewards))

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """[G] the advantages of the scored members of a group, from their rewards [G]: less their mean."""
        centre = fmean(rewards)
        return [reward - centre for reward in rewards]

    def kl_penalty(self) -> KlPenalty | None:
        """What is taken from each reward, or each token's with a value function."""
        if self._options.kl != "reward":
            return None
        return KlPenalty(coefficient=self._options.kl_coef, estimator=self._options.kl_estimator or "k1")

    def idle_options(self, steps: int) -> tuple[IdleOption, ...]:
        """Clips and forms of the ratio without a second step, and a KL that is off. Options that are off are none."""
        loss = self.loss()
        effective = loss.effective(steps)
        clips = ("clip_low", "clip_high", "dual_clip", "value_clip")
        reasons = {name: _ONE_STEP for name in clips if getattr(loss, name, 0) and not getattr(effective, name)}
        if effective != loss:
            reasons |= self.idle_forms()
        found = [IdleOption(name=name, reason=reason, remedy=self.more_steps) for name, reason in reasons.items()]
        if self._options.kl == "off":
            idle = [name for name in ("kl_coef", "kl_estimator") if name in self._options.model_fields_set]
            remedy = "--set optimizer.options.kl=loss"
            found += [IdleOption(name=name, reason="kl is off", remedy=remedy) for name in idle]
        return tuple(found)

    def idle_forms(self) -> dict[str, str]:
        """Further options without effect where the ratio is 1, with the reason."""
        return {}


Variant = Literal["grpo", "dapo", "dr_grpo", "gspo", "cispo"]
Std = Literal["none", "group", "batch"]
Ratio = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What a variant sets. `defines` names the options that make it what it is: another value contradicts it."""

    normalization: Normalization = "trained"
    normalize_std: Std = "none"
    ratio: Ratio = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    defines: frozenset[str] = frozenset({"normalization", "ratio"})


PRESETS: dict[Variant | None, Preset] = {
    # No variant: Dr. GRPO's advantage under DAPO's mean over tokens, with PPO's symmetric clip.
    None: Preset(defines=frozenset()),
    # DeepSeekMath, arXiv 2402.03300, equation 3 and section 4.1.2. Its KL term is option kl=loss, there with 0.04.
    "grpo": Preset(normalization="sequence", normalize_std="group"),
    # arXiv 2503.14476, equations 8 and 9; clips of section 4.1. Groups without signal are left out in any case.
    "dapo": Preset(normalization="token", normalize_std="group", clip_high=0.28),
    # arXiv 2503.20783, section 3.2: neither division by the deviation nor by the length of an episode.
    "dr_grpo": Preset(normalization="constant", defines=frozenset({"normalization", "ratio", "normalize_std"})),
    # arXiv 2507.18071, equations 5 to 7; clips of section 5.1.
    "gspo": Preset(
        normalization="sequence",
        normalize_std="group",
        ratio="sequence",
        clip_low=3e-4,
        clip_high=4e-4,
        defines=frozenset({"normalization", "ratio", "dual_clip"}),
    ),
    # MiniMax-M1, arXiv 2506.13585, equations 4 and 5, which has no lower bound and leaves the upper one open; 5, as
    # 1 + clip_high, is in the range that ScaleRL, arXiv 2510.13786, found to make no difference.
    "cispo": Preset(
        normalization="token",
        normalize_std="group",
        clip_low=0.0,
        clip_high=4.0,
        defines=frozenset({"normalization", "ratio", "dual_clip"}),
    ),
}


class GrpoConfig(PolicyGradientOptions):
    """Options of `grpo`. Those that are unset take the value of the variant."""

    variant: Variant | None = Field(
        default=None,
        description="A published method as a preset: grpo (DeepSeekMath), dapo, dr_grpo, gspo, cispo. unset: no "
        "division by the deviation, mean over tokens, clips of 0.2.",
    )
    baseline: Literal["mean", "median"] = Field(
        default="mean", description="Baseline of the group; median is MC-GRPO's, steadier in small groups of odd size."
    )
    normalize_std: Std | None = Field(
        default=None, description="Divide advantages by the rewards' standard deviation: none, group or batch."
    )
    ratio: Ratio | None = Field(
        default=None, description="The importance ratio is of a token, or the geometric mean over a sequence's."
    )
    clip_low: float | None = Field(default=None, ge=0, lt=1, description="Ratio is clipped below 1 - this; 0: not.")
    clip_high: float | None = Field(default=None, ge=0, description="Ratio is clipped above 1 + this; 0: not.")
    dual_clip: float = Field(default=0.0, ge=0, description="Bounds the ratio where the advantage is negative; 0: not.")
    minimum_members: int = Field(default=2, ge=2, description="Groups with fewer scored members are dropped.")

    @field_validator("normalize_std", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        """True and false are the older spelling of group and none."""
        return {True: "group", False: "none"}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        preset = PRESETS[self.variant]
        for name in sorted(preset.defines & self.model_fields_set):
            given, defined = getattr(self, name), getattr(preset, name, 0.0)
            if given is not None and given != defined:
                raise ValueError(f"{name}={given} contradicts variant={self.variant}, which has {defined}")
        if 0 < self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be 0 or above 1, not {self.dual_clip}")
        if self.dual_clip and self.ratio == "sequence":
            raise ValueError("dual_clip bounds ratios of tokens, but ratio=sequence")
        return self

    def mean_over(self) -> Normalization:
        """The normalization that applies."""
        return self.normalization or PRESETS[self.variant].normalization

    def resolve(self) -> Preset:
        """The variant's values, but for the options that are set."""
        given = {name: getattr(self, name) for name in ("normalize_std", "ratio", "clip_low", "clip_high")}
        return replace(PRESETS[self.variant], **{name: value for name, value in given.items() if value is not None})


class Grpo(PolicyGradient):
    """Group-relative policy optimization.

    A_i = r_i - b over the scored members of a group, b their mean or median; with `normalize_std` divided by the
    (population std + 1e-8) of the rewards of the group, or of all groups that are trained on.

    Sources: DeepSeekMath, arXiv 2402.03300, equation 3 and section 4.1.2 (group std); Dr. GRPO, arXiv 2503.20783, for
    why the division biases towards very easy and very hard questions (off by default); REINFORCE++, arXiv 2501.03262,
    for the batch's; MC-GRPO, arXiv 2601.22582, for the median. Variants: see `PRESETS`.
    """

    def __init__(self, config: GrpoConfig) -> None:
        super().__init__(config)
        self._config, self._preset = config, config.resolve()
        self.minimum_members = config.minimum_members

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """[G] rewards less the baseline, divided by the group's deviation where the options say so."""
        baseline = fmean(rewards) if self._config.baseline == "mean" else median(rewards)
        scale = 1.0 / standard_deviation(rewards) if self._preset.normalize_std == "group" else 1.0
        return [(reward - baseline) * scale for reward in rewards]

    def batch_credit(self, groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
        """Divides by the batch's deviation where the options say so."""
        return divide_by_batch_std(groups, credits) if self._preset.normalize_std == "batch" else tuple(credits)

    def loss(self) -> PolicyGradientLoss:
        """The clipped policy gradient, or the variant's own form of it."""
        form = "cispo" if self._config.variant == "cispo" else "ppo"
        return self._config.make_loss(
            form="gspo" if self._preset.ratio == "sequence" else form,
            clip_low=self._preset.clip_low,
            clip_high=self._preset.clip_high,
            dual_clip=self._config.dual_clip,
        )

    def idle_forms(self) -> dict[str, str]:
        """A ratio of sequences, and the variants that differ from another one by the form of their ratio alone."""
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


def batch_rewards(groups: Sequence[Group], credits: Sequence[Credit]) -> list[float]:
    """The rewards of all scored members of the groups that are not dropped."""
    kept = [group for group, credit in zip(groups, credits, strict=True) if not credit.dropped]
    return [reward for group in kept for reward in scored_rewards(group) if reward is not None]


def divide_by_batch_std(groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
    """Every advantage divided by the standard deviation of the rewards of the batch (see `standard_deviation`).

    Advantages that are differences of rewards are then those of whitened rewards, (r - mean) / std over the batch:
    the mean cancels.
    """
    rewards = batch_rewards(groups, credits)
    if not rewards:
        return tuple(credits)
    std = standard_deviation(rewards)
    return change_advantages(credits, lambda advantage: advantage / std)


def change_advantages(credits: Sequence[Credit], change: Callable[[float], float]) -> tuple[Credit, ...]:
    """The credits with every advantage of the groups that are not dropped changed."""
    return tuple(
        credit
        if credit.dropped
        else replace(credit, advantages=tuple(None if each is None else change(each) for each in credit.advantages))
        for credit in credits
    )


def standard_deviation(rewards: Sequence[float]) -> float:
    """The population's, plus 1e-8."""
    centre = fmean(rewards)
    return math.sqrt(math.fsum((reward - centre) ** 2 for reward in rewards) / len(rewards)) + _STD_FLOOR
