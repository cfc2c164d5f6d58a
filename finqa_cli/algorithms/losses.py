"""The token losses that come with finqa, as typed models, and the weight of each sample in a batch. No torch.

The functions that compute the losses are in the learner: `finqa_plugins.learners.torch.loss_functions` maps each class
to its function. The loss on pairs is in `pair_batches`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from finqa_cli.types import KlEstimator, Loss, Sample

OffPolicy = Literal["none", "token", "sequence", "icepop", "geometric"]


class CrossEntropyLoss(Loss):
    """Negative log-likelihood -log p of each token, for the imitation of demonstrations."""


class PolicyGradientLoss(Loss):
    """-(w (f(r) A - kl_coef KL) + entropy_coef H), plus value_coef times the value loss if there is a value function.

    A is the advantage, KL the divergence from the reference policy, and H the entropy. r is the probability ratio of
    the current weights to the anchor. The anchor is the policy before the first step of the iteration; its
    log-probabilities are computed by the learner, never by the engine. w corrects for tokens that the sampler found
    more or less likely than the anchor.
    """

    at_rollout_temperature: ClassVar[bool] = True
    has_ratio: ClassVar[bool] = True
    idle_in_one_step: ClassVar[tuple[str, ...]] = ("form", "clip_low", "clip_high", "dual_clip", "value_clip")
    """With one step the anchor is the current policy and r is 1: no clip acts, and all forms have the same gradient.
    The values are those that the advantages were computed from, so the clip of the values does not act either."""

    form: Literal["ppo", "gspo", "cispo"] = "ppo"
    """f: the clipped ratio of a token (`ppo`), that of a whole sequence (`gspo`), or log p with the clipped ratio as
    its weight (`cispo`)."""
    clip_low: float = Field(default=0.0, ge=0, lt=1)
    """r is clipped from below at 1 - clip_low; 0: no clip."""
    clip_high: float = Field(default=0.0, ge=0)
    """r is clipped from above at 1 + clip_high; 0: no clip."""
    dual_clip: float = Field(default=0.0, ge=0)
    """Upper bound on r where the advantage is negative, above 1, in form `ppo` only; 0: no bound."""
    off_policy: OffPolicy = "none"
    """How w follows from k = p(anchor) / p(sampler). `none`: w is 1. `token`: k of the token, at most the cap.
    `sequence`: the product of k over the sequence, 0 above the cap. `icepop`: k of the token, 0 outside [floor, cap].
    `geometric`: 1 where the geometric mean of k over the sequence is within [floor, cap], else 0."""
    off_policy_floor: float = Field(default=0.0, ge=0, le=1)
    """Floor of `icepop` and `geometric`, above 0."""
    off_policy_cap: float = Field(default=0.0, ge=0)
    """Cap of every correction, at least 1."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the KL divergence from the reference policy; 0: off."""
    kl_estimator: KlEstimator = "k3"
    """How the KL divergence is estimated; see `KlPenalty`."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the entropy bonus; 0: off."""
    value_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the value loss, in form `ppo` only; 0: no value function."""
    value_clip: float = Field(default=0.0, ge=0)
    """How far a value may move from the sample's value before its loss is constant; 0: no limit."""

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


def counts_neutral(loss: Loss) -> bool:
    """Whether members whose advantage is 0 belong to the batch, because they count in a mean or the loss moves them."""
    return loss.normalization != "trained" or loss.moves_neutral


def weigh_samples(samples: Sequence[Sample], loss: Loss) -> tuple[Sample, ...]:
    """The samples of one step with their weights, without those that would cost a pass for a zero gradient.

    The learner sums the weighted losses of all tokens and divides by K, the loss tokens of the batch, so that the
    gradient does not depend on the division into micro-batches. N is the number of episodes, |o| the loss tokens of an
    episode, S those of all episodes, and K those of the samples that are returned. The weight is 1 (`trained`), K / S
    (`token`), K / (N |o|) (`sequence`) or K / (N length) (`constant`); this gives the means that `Loss.normalization`
    describes. An episode that forks counts once.

    Sources: `token` DAPO, arXiv 2503.14476, equation 8; `sequence` DeepSeekMath, arXiv 2402.03300, equation 3;
    `constant` Dr. GRPO, arXiv 2503.20783, section 3.2 and its published code.
    """
    episodes = [sample.episode or place for place, sample in enumerate(samples)]
    lengths: Counter[str | int] = Counter()
    for sample, episode in zip(samples, episodes, strict=True):
        lengths[episode] += sample.loss_tokens
    moving = [loss.moves_neutral or bool(sample.advantages.any()) for sample in samples]
    kept = [(sample, episode) for sample, episode, moves in zip(samples, episodes, moving, strict=True) if moves]
    if loss.normalization == "trained":
        return tuple(sample for sample, _ in kept)
    tokens = sum(sample.loss_tokens for sample, _ in kept)

    def weight(episode: str | int) -> float:
        if loss.normalization == "token":
            return tokens / lengths.total()
        length = loss.normalization_length if loss.normalization == "constant" else lengths[episode]
        return tokens / (len(lengths) * length)

    return tuple(replace(sample, weight=weight(episode)) for sample, episode in kept)
