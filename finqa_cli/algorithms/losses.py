"""The losses that come with finqa, as typed models, and how much each sample weighs in a batch. No torch.

The functions that compute them are in the learner: `finqa_plugins.learners.torch.loss_functions` maps each class to its
own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from finqa_cli.errors import ConfigError
from finqa_cli.types import KlEstimator, Loss, Sample

OffPolicy = Literal["none", "token", "sequence", "icepop", "geometric"]

OFF_POLICY_BOUNDS: dict[OffPolicy, tuple[float, float]] = {
    "none": (0.0, 0.0),
    "token": (0.0, 2.0),
    "sequence": (0.0, 2.0),
    "icepop": (0.5, 5.0),
    "geometric": (0.99, 1.01),
}
"""Floor and cap where none is set. token, sequence: verl's default; icepop: as published; geometric: SkyRL's."""


class CrossEntropyLoss(Loss):
    """-log p of each token: imitation of demonstrations."""


class PolicyGradientLoss(Loss):
    """-(w (f(r) A - kl_coef KL) + entropy_coef H), and the value loss of methods that have a value function.

    r is the ratio of the current weights to the anchor: those before the first step of the iteration, computed by the
    learner and never by the engine. w corrects for tokens that the sampler found more or less likely than the anchor.
    """

    at_rollout_temperature: ClassVar[bool] = True

    form: Literal["ppo", "gspo", "cispo"] = "ppo"
    """f: the clipped ratio of a token (`ppo`), that of a whole sequence (`gspo`), or log p with the clipped ratio as
    its weight (`cispo`)."""
    clip_low: float = Field(default=0.0, ge=0, lt=1)
    """r is clipped below 1 - this; 0: it is not."""
    clip_high: float = Field(default=0.0, ge=0)
    """r is clipped above 1 + this; 0: it is not."""
    dual_clip: float = Field(default=0.0, ge=0)
    """Bound above 1 on r where the advantage is negative, in form `ppo` only; 0: none."""
    off_policy: OffPolicy = "none"
    """w from k = p(anchor) / p(sampler). `token`: k of the token, at most the cap. `sequence`: the product of k over
    the sequence, 0 above the cap. `icepop`: k of the token, 0 outside [floor, cap]. `geometric`: 1 where the geometric
    mean of k over the sequence is within [floor, cap], else 0."""
    off_policy_floor: float = Field(default=0.0, ge=0, le=1)
    """Floor of `icepop` and `geometric`, above 0."""
    off_policy_cap: float = Field(default=0.0, ge=0)
    """Cap of every correction, at least 1."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the KL divergence from the reference policy; 0: off."""
    kl_estimator: KlEstimator = "k3"
    """How that is estimated; see `KlPenalty`."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the policy's entropy, which is raised; 0: off."""
    value_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the value loss, in form `ppo` only; 0: no value function."""
    value_clip: float = Field(default=0.0, ge=0)
    """How far a value may get from the sample's before its loss is constant; 0: any way."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        bounded = self.off_policy in ("icepop", "geometric")
        if 0 < self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be 0 (off) or above 1, not {self.dual_clip}")
        if self.form != "ppo" and (self.dual_clip or self.value_coef):
            raise ValueError(f"dual_clip and value_coef belong to form ppo, not to {self.form}")
        if self.value_clip and not self.value_coef:
            raise ValueError(f"value_clip={self.value_clip} has no effect while value_coef is 0")
        if (self.off_policy_cap >= 1) != (self.off_policy != "none") or (self.off_policy_floor > 0) != bounded:
            raise ValueError(
                f"off_policy={self.off_policy} needs a cap of 1 or more, icepop and geometric a floor in (0, 1] as "
                f"well, and none neither; they are {self.off_policy_cap} and {self.off_policy_floor}"
            )
        return self

    @property
    def has_ratio(self) -> bool:
        """Always."""
        return True

    @property
    def needs_reference(self) -> bool:
        """Whether the loss has a KL term."""
        return self.kl_coef > 0

    @property
    def needs_values(self) -> bool:
        """Whether the loss has a value term."""
        return self.value_coef > 0

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether the loss has an entropy term."""
        return self.entropy_coef > 0

    def effective(self, steps: int) -> Self:
        """The loss without clips and forms in a single step.

        The anchor is then the current policy and r is 1: no clip acts, all forms have the same gradient, and values are
        those that advantages were made with, so that their clip does not act either.
        """
        if steps > 1:
            return self
        unclipped = {"clip_low": 0.0, "clip_high": 0.0, "dual_clip": 0.0, "value_clip": 0.0}
        return self.model_copy(update={"form": "ppo", **unclipped})


class PreferenceLoss(Loss):
    """A loss on pairs, of h = log pi/ref(chosen) - log pi/ref(rejected), each a sum over its tokens with loss."""

    of_pairs: ClassVar[bool] = True

    form: Literal["sigmoid", "hinge", "ipo"] = "sigmoid"
    """DPO's -log sigmoid(beta h), max(0, 1 - beta h), or (h - 1 / (2 beta))^2."""
    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull towards the reference policy."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of preferences that may be the wrong way round, for `sigmoid`; at 0.5 nothing would be preferred."""
    reference_free: bool = False
    """All sequences are equally likely under the reference, so its log-probabilities are not needed."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.label_smoothing and self.form != "sigmoid":
            raise ValueError(f"label_smoothing belongs to form sigmoid, not to {self.form}")
        return self

    @property
    def needs_reference(self) -> bool:
        """Unless the loss is free of it."""
        return not self.reference_free


def correct_off_policy(
    loss: Loss,
    *,
    mode: OffPolicy | Literal["auto"],
    max_staleness: int,
    cap: float | None = None,
    floor: float | None = None,
) -> Loss:
    """The optimizer's loss, corrected for a sampler that is not the anchor.

    The sampler differs from the learner's weights for two reasons: rollouts run ahead, so that older weights sampled,
    and an engine rounds differently, so that even equal weights give other log-probabilities.

    Args:
        loss: What the optimizer wants.
        mode: See `PolicyGradientLoss.off_policy`. `auto` is `token`, and leaves a loss unchanged that is corrected. At
            staleness 0 as well: with one step per iteration the gradient is then that of a ratio to the sampler, as
            far as neither a clip nor the cap acts.
        max_staleness: How many iterations rollouts may run ahead of the learner.
        cap: Largest ratio that passes, at least 1; None for the mode's own.
        floor: Smallest ratio that passes, at most 1, of `icepop` and `geometric`; None for the mode's own.

    Raises:
        ConfigError: The loss does not use the sampler's log-probabilities, or corrects itself already.
    """
    if not isinstance(loss, PolicyGradientLoss):
        if mode in ("auto", "none") and max_staleness == 0:
            return loss
        explicit = "" if mode == "auto" else " --set train.off_policy=auto"
        raise ConfigError(
            f"train.off_policy={mode} with max_staleness {max_staleness}: {type(loss).__name__} does not use the "
            "sampler's log-probabilities, so tokens of older weights would be trained on uncorrected.",
            remedy="--max-staleness 0" + explicit,
        )
    if loss.off_policy != "none":
        if mode == "auto":
            return loss
        raise ConfigError(
            f"train.off_policy={mode}, but the optimizer's loss brings a correction of its own.",
            remedy="--set train.off_policy=auto",
        )
    chosen: OffPolicy = "token" if mode == "auto" else mode
    lowest, highest = OFF_POLICY_BOUNDS[chosen]
    bounds = {"off_policy_floor": lowest and (floor or lowest), "off_policy_cap": highest and (cap or highest)}
    return loss.model_copy(update={"off_policy": chosen, **bounds})


def counts_neutral(loss: Loss) -> bool:
    """Whether members whose advantage is 0 belong to the batch: they are counted, or the loss moves them as well."""
    return loss.normalization != "trained" or loss.moves_neutral


def weigh_samples(samples: Sequence[Sample], loss: Loss) -> tuple[Sample, ...]:
    """The samples of one step with their weights, less those that would only cost a forward and backward pass.

    The learner sums the weighted losses of all tokens and divides by K, the tokens of the batch, so that the gradient
    does not depend on how the batch is cut. With N episodes, |o| tokens with loss in an episode, S in all of them and
    K in the samples that are returned, the weight is 1 (`trained`), K / S (`token`), K / (N |o|) (`sequence`) or
    K / (N length) (`constant`): the means that `Loss.normalization` names. An episode that forks counts once.

    Sources: `token` DAPO, arXiv 2503.14476, equation 8; `sequence` DeepSeekMath, arXiv 2402.03300, equation 3;
    `constant` Dr. GRPO, arXiv 2503.20783, section 3.2 and its published code.
    """
    episodes = [sample.episode or place for place, sample in enumerate(samples)]
    kept = [
        (sample, episode)
        for sample, episode in zip(samples, episodes, strict=True)
        if loss.moves_neutral or sample.advantages.any()
    ]
    if loss.normalization == "trained":
        return tuple(sample for sample, _ in kept)
    lengths: Counter[str | int] = Counter()
    for sample, episode in zip(samples, episodes, strict=True):
        lengths[episode] += sample.loss_tokens
    tokens = sum(sample.loss_tokens for sample, _ in kept)

    def weight(episode: str | int) -> float:
        if loss.normalization == "token":
            return tokens / lengths.total()
        length = loss.normalization_length if loss.normalization == "constant" else lengths[episode]
        return tokens / (len(lengths) * length)

    return tuple(replace(sample, weight=weight(episode)) for sample, episode in kept)
