"""Per-token losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from finqa_cli.errors import ConfigError
from finqa_cli.types import LossSpec
from finqa_plugins.torch_learner.forward import Inputs

_LARGEST_LOG_RATIO = 20.0
"""exp(20) = 4.9e8: beyond it a ratio is only a danger to the arithmetic."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Sums over the N tokens of a micro-batch.

    Attributes:
        loss: Scalar with gradient.
        sums: Scalars without gradient by name; divided by the batch's token count they are metrics.
        maxima: Scalars without gradient by name; their maximum over the micro-batches is a metric.
    """

    loss: torch.Tensor
    sums: dict[str, torch.Tensor]
    maxima: dict[str, torch.Tensor]


LossFunction = Callable[[torch.Tensor, Inputs], TokenLoss]
"""From the log-probabilities [N] under the current weights, and what the micro-batch carries."""


def build_loss(spec: LossSpec) -> LossFunction:
    """The function that a spec names.

    Raises:
        ConfigError: The name or a parameter is unknown, or a clip is negative.
    """
    known = {"policy_gradient": {"clip_low", "clip_high"}, "cross_entropy": set[str]()}
    if spec.name not in known:
        raise ConfigError(f"Learner 'torch' has no loss {spec.name!r}; it has {', '.join(known)}.")
    if unknown := sorted(set(spec.parameters) - known[spec.name]):
        names = ", ".join(sorted(known[spec.name])) or "none"
        raise ConfigError(f"Loss {spec.name!r} has no parameter {', '.join(unknown)}; it has {names}.")
    if spec.name == "cross_entropy":
        return _cross_entropy
    low, high = spec.parameters.get("clip_low", 0.0), spec.parameters.get("clip_high", 0.0)
    if not (0 <= low < 1 and high >= 0):
        raise ConfigError(f"clip_low must lie in [0, 1) and clip_high be 0 or more, not {low} and {high}.")
    return lambda logprobs, inputs: _policy_gradient(logprobs, inputs, low, high)


def _cross_entropy(logprobs: torch.Tensor, inputs: Inputs) -> TokenLoss:
    del inputs
    return TokenLoss(loss=-logprobs.sum(), sums={}, maxima={})


def _policy_gradient(logprobs: torch.Tensor, inputs: Inputs, low: float, high: float) -> TokenLoss:
    """-min(r A, clip(r, 1 - low, 1 + high) A) with r = exp(logp - sampler logp).

    PPO, arXiv 1707.06347, equation 7, per token, with a bound for each side (DAPO, arXiv 2503.14476, section 3.1).
    The ratio is to the policy that sampled, as the sampler itself reported it. The KL estimate is k3 of Schulman,
    "Approximating KL divergence" (2020), for KL(sampler || learner): r - 1 - log r.
    """
    difference = logprobs - inputs.old_logprobs
    ratio = difference.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()
    clipped = ratio.clamp(1.0 - low if low else None, 1.0 + high if high else None) if low or high else ratio
    plain = ratio * inputs.advantages
    objective = torch.minimum(plain, clipped * inputs.advantages)
    with torch.no_grad():
        apart = difference.abs()
        sums = {
            "logprob_difference_mean": apart.sum(),
            "ratio_mean": ratio.sum(),
            "clip_fraction": (objective < plain).sum(),
            "kl": (ratio - 1.0 - difference).sum(),
        }
        maxima = {"logprob_difference_max": apart.max()} if apart.numel() else {}
    return TokenLoss(loss=-objective.sum(), sums=sums, maxima=maxima)
