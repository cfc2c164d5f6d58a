"""What flows from graded groups to an updated policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


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
        proximal_logprobs: [L] log-probabilities under the weights before the first step of the iteration, for a
            decoupled loss; 0.0 where the mask is False. Empty: the weights that the loss meets are those.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    proximal_logprobs: tuple[float, ...] = ()

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
        loss_tokens: Masked positions over all samples: the one number that every token loss is divided by, so that
            the gradient does not depend on how the batch was cut.
    """

    samples: tuple[Sample, ...]
    microbatches: tuple[tuple[int, ...], ...]
    loss_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """Which per-token loss a learner applies, with its numbers. An unknown name or parameter is a ConfigError.

    `policy_gradient`: clip_low, clip_high (0 turns the importance ratio's clip off on that side); token_cap,
    sequence_cap (at most one above 0 makes the loss decoupled: the ratio is to the proximal weights, and the ratio of
    these to the sampler weighs it, truncated at token_cap per token, or per sequence and 0 above sequence_cap).
    `cross_entropy`: none.
    """

    name: str
    parameters: Mapping[str, float] = field(default_factory=dict)


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
