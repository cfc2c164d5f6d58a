"""GRPO and its variants: a member's advantage is its reward less that of its group."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from finqa_cli.types import Credit, Group, IdleOption, KlPenalty, LossSpec, Normalization
from finqa_plugins.optimizers.clip_options import MORE_STEPS, PolicyGradientOptions
from finqa_plugins.optimizers.idle import idle_options
from finqa_plugins.optimizers.reward_shaping import divided_by_batch_std, group_credit, mean, standard_deviation
from finqa_plugins.optimizers.variants import PLAIN, PRESETS, Preset, Ratio, Std, Variant


class GrpoConfig(PolicyGradientOptions):
    """Options of `grpo`. Those that are unset take the value of the variant."""

    variant: Variant | None = Field(
        default=None,
        description="A published method as a preset: grpo (DeepSeekMath), dapo, dr_grpo, gspo, cispo. unset: no "
        "division by the deviation, mean over tokens, clips of 0.2.",
    )
    baseline: Literal["mean", "median"] = Field(
        default="mean", description="Of the group; median is MC-GRPO's, steadier in small groups of odd size."
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
        preset = self.preset()
        for name in sorted(preset.defines & self.model_fields_set):
            given, defined = getattr(self, name), getattr(preset, name, 0.0)
            if given is not None and given != defined:
                raise ValueError(f"{name}={given} contradicts variant={self.variant}, which has {defined}")
        if 0 < self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be 0 or above 1, not {self.dual_clip}")
        if self.dual_clip and self.ratio == "sequence":
            raise ValueError("dual_clip bounds ratios of tokens, but ratio=sequence")
        return self

    def preset(self) -> Preset:
        """What the variant sets."""
        return PRESETS[self.variant] if self.variant else PLAIN

    def mean_over(self) -> Normalization:
        """The normalization that applies."""
        return self.normalization or self.preset().normalization


class Grpo:
    """Group-relative policy optimization.

    A_i = r_i - b over the scored members of a group, b their mean or median; with `normalize_std` divided by the
    (population std + 1e-8) of the rewards of the group, or of all groups that are trained on.

    Sources: DeepSeekMath, arXiv 2402.03300, equation 3 and section 4.1.2 (group std); Dr. GRPO, arXiv 2503.20783, for
    why the division biases towards very easy and very hard questions (off by default); REINFORCE++, arXiv 2501.03262,
    for the batch's; MC-GRPO, arXiv 2601.22582, for the median. Variants: see `variants`.
    """

    def __init__(self, config: GrpoConfig) -> None:
        self._config = config
        self._std = config.preset().normalize_std if config.normalize_std is None else config.normalize_std

    def credit(self, group: Group) -> Credit:
        """Faulted and ungraded members are excluded; a group without spread in its rewards is dropped.

        Raises:
            FinqaError: A reward is not a finite number.
        """
        return group_credit(group, self._advantages, minimum_members=self._config.minimum_members)

    def batch_credit(self, groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
        """Divides by the batch's deviation where that is asked for."""
        return divided_by_batch_std(groups, credits) if self._std == "batch" else tuple(credits)

    def kl_penalty(self) -> KlPenalty | None:
        """What is taken from each reward."""
        return self._config.kl_penalty()

    def idle_options(self, steps: int) -> tuple[IdleOption, ...]:
        """Clips and ratios of a single step, and a KL that is off."""
        config, form = self._config, {}
        if config.ratio == "sequence":
            form["ratio"] = ""
        if config.variant in ("gspo", "cispo"):
            form["variant"] = f", so that {config.variant} is {'grpo' if config.variant == 'gspo' else 'dapo'}"
        return idle_options(config, self.loss(), steps=steps, more_steps=MORE_STEPS, form=form)

    def loss(self) -> LossSpec:
        """The clipped policy gradient, or the variant's own form of it."""
        config, preset = self._config, self._config.preset()
        sequence = (config.ratio or preset.ratio) == "sequence"
        return config.loss_spec(
            "gspo" if sequence else "cispo" if config.variant == "cispo" else "policy_gradient",
            clip_low=preset.clip_low if config.clip_low is None else config.clip_low,
            clip_high=preset.clip_high if config.clip_high is None else config.clip_high,
            dual_clip=config.dual_clip,
        )

    def _advantages(self, rewards: list[float]) -> list[float]:
        baseline = mean(rewards) if self._config.baseline == "mean" else statistics.median(rewards)
        scale = 1.0 / standard_deviation(rewards) if self._std == "group" else 1.0
        return [(reward - baseline) * scale for reward in rewards]
