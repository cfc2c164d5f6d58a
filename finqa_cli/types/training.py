"""What flows from graded groups to an updated policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

Normalization = Literal["trained", "token", "sequence", "constant"]
KlEstimator = Literal["k1", "k3"]

RATIO_LOSSES = ("policy_gradient", "gspo", "cispo")
"""Losses with a ratio to the anchor; see `LossSpec`."""

_OF_SEVERAL_STEPS = ("clip_low", "clip_high", "dual_clip", "value_clip")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """What a learner publishes and an engine loads.

    Attributes:
        number: 0 is the base model; each published update adds one.
        model: Folder or hub id of the base model.
        adapter: Folder of a PEFT adapter on top of it, or None.
    """

    number: int
    model: str
    adapter: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What an optimizer made of one group.

    Attributes:
        advantages: [G] one number per trajectory; None excludes it (a fault).
        dropped: Why the whole group carries no signal (`zero_variance`, `too_few`); empty when it is informative.
    """

    advantages: tuple[float | None, ...]
    dropped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One token sequence to train on; all four lists have the same length L.

    Attributes:
        token_ids: [L] prompt, sampled and tool tokens in the order of the episode.
        loss_mask: [L] True where the id was sampled by the policy (or demonstrated); position 0 is always False.
        logprobs: [L] sampler log-probabilities; 0.0 where the mask is False.
        advantages: [L] advantage of each masked token; 0.0 elsewhere.
        proximal_logprobs: [L] log-probabilities under the weights before the first step of the iteration, the anchor
            of the loss's ratio; 0.0 where the mask is False. Empty: the weights that the loss meets are those.
        reference_logprobs: [L] log-probabilities under the reference policy, 0.0 where the mask is False. Empty: the
            update needs none.
        values: [L] what the value function gave each masked token's state before the first step of the iteration, 0.0
            elsewhere. Empty: the method has none.
        returns: [L] what values are to become, 0.0 where the mask is False. Empty: the method has no value function.
        weight: Factor on the loss of each of its tokens; see `LossSpec.normalization`.
        episode: Which episode it belongs to; one that forks has several samples. Empty: an episode of its own.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    proximal_logprobs: tuple[float, ...] = ()
    reference_logprobs: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    returns: tuple[float, ...] = ()
    weight: float = 1.0
    episode: str = ""

    @property
    def loss_tokens(self) -> int:
        """How many positions carry loss."""
        return sum(self.loss_mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One optimizer step.

    Attributes:
        samples: All sequences of the step.
        microbatches: Indices into `samples`; each inner tuple fits the token budget and is one forward and backward.
        loss_tokens: Masked positions over all samples: the one number that the sum of all weighted token losses is
            divided by, so that the gradient does not depend on how the batch was cut.
    """

    samples: tuple[Sample, ...]
    microbatches: tuple[tuple[int, ...], ...]
    loss_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """Which per-token loss a learner applies, with its numbers. An unknown name or parameter is a ConfigError.

    `policy_gradient` (PPO's, ratio per token), `gspo` (ratio per sequence) and `cispo` (clipped ratios as weights) have
    the ratio of the current weights to the anchor: those before the first step of the iteration, computed by the
    learner and never by the engine. They take: clip_low, clip_high (0 turns the ratio's clip off on that side);
    token_cap, sequence_cap, icepop_cap, geometric_cap (at most one above 0: the loss is weighed by the ratio of the
    anchor to the sampler, truncated at token_cap per token; its product over a sequence, 0 above sequence_cap; per
    token, 0 outside [icepop_floor, icepop_cap]; or 1 for sequences whose geometric mean of it is within
    [geometric_floor, geometric_cap] and 0 for others); kl_k1, kl_k3 (at most one above 0 is
    the coefficient of the KL divergence from the reference policy, by that estimator); entropy_coef (of the policy's
    entropy, which is raised). `policy_gradient` also: dual_clip (0, or a bound above 1 on the ratio where the
    advantage is negative); value_coef, value_clip (above 0, the coefficient of the value loss, and how far a value may
    get from the sample's before its loss is held; 0 for any way). `cross_entropy`: none.

    Attributes:
        name: One of the above, or what another learner knows.
        parameters: Its numbers by name.
        normalization: What the token losses of a batch add up to. `trained`: their mean over the tokens whose loss can
            move the policy. `token`: their mean over the tokens of all scored members of the groups that are trained
            on, those included whose advantage is 0. `sequence`: the mean over these members of the mean over their
            tokens. `constant`: the mean over these members of the sum over their tokens, divided by
            `normalization_length`.
        normalization_length: Of `constant`, in tokens.
    """

    name: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    normalization: Normalization = "trained"
    normalization_length: float = 0.0

    def effective(self, steps: int) -> LossSpec:
        """The loss without what no gradient depends on, in iterations of so many optimizer steps.

        With one step the anchor is the current policy: the ratio is 1, so nothing is clipped, and the ratio of a
        sequence, a ratio of tokens and a clipped weight have the same gradient. Values are what they were when
        advantages were made, so that their clip acts on nothing either.
        """
        if steps > 1 or self.name not in RATIO_LOSSES:
            return self
        parameters = {name: number for name, number in self.parameters.items() if name not in _OF_SEVERAL_STEPS}
        return replace(self, name="policy_gradient", parameters=parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleOption:
    """An option of an optimizer that asks for something which cannot happen under the settings.

    Attributes:
        name: Of the option.
        reason: Why, as the end of a sentence.
        remedy: Flags under which it has an effect.
    """

    name: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KlPenalty:
    """What is taken from each reward before credit: the coefficient times the estimated KL divergence, in nats, of the
    sampler from the reference policy, summed over the sampled tokens of the episode.

    `k1` is logp - reference logp, `k3` exp(-k1) - 1 + k1 (Schulman, "Approximating KL divergence", 2020).
    """

    coefficient: float
    estimator: KlEstimator


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageEstimation:
    """Generalized advantage estimation over the sampled tokens of an episode.

    Attributes:
        gamma: Discount per sampled token.
        lam: 0 trusts the next value, 1 the rewards.
        whiten: Advantages get mean 0 and deviation 1 over the sampled tokens of the batch.
    """

    gamma: float
    lam: float
    whiten: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How an iteration's samples become steps.

    Attributes:
        epochs: How often each sample is trained on.
        minibatches: Steps of an epoch; each takes its share of the samples.
        target_kl: Mean divergence per token, in nats, from the policy that steps are clipped around, at which the
            steps that are left are skipped; 0 for never.
    """

    epochs: int
    minibatches: int
    target_kl: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What one optimizer step did.

    Attributes:
        loss: The normalised loss.
        grad_norm: Global norm before clipping.
        learning_rate: The rate that was applied.
        tokens: Tokens forwarded, padding excluded.
        loss_tokens: Tokens that carried loss.
        seconds: Wall time.
        metrics: Further numbers by name (`logprob_difference_max`, `clip_fraction`, `entropy`, ...).
    """

    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    loss_tokens: int
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)
