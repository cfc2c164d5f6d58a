"""Per-token losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from finqa_cli.errors import ConfigError
from finqa_cli.types import LossSpec
from finqa_plugins.torch_learner.forward import Inputs
from finqa_plugins.torch_learner.importance import WeightFunction, bounded_ratio, build_weights

_PARAMETERS = {
    "policy_gradient": {"clip_low", "clip_high", "token_cap", "sequence_cap"},
    "cross_entropy": set[str](),
}


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Sums over the N tokens of a micro-batch.

    Attributes:
        loss: Scalar with gradient.
        sums: Scalars without gradient by name; divided by the batch's token count they are metrics.
        maxima: Scalars without gradient by name; their maximum over the micro-batches is a metric.
        sequence_sums: Scalars without gradient by name; divided by the batch's sequences with loss they are metrics.
    """

    loss: torch.Tensor
    sums: dict[str, torch.Tensor]
    maxima: dict[str, torch.Tensor]
    sequence_sums: dict[str, torch.Tensor] = field(default_factory=dict)


LossFunction = Callable[[torch.Tensor, Inputs], TokenLoss]
"""From the log-probabilities [N] under the current weights, and what the micro-batch carries."""


def build_loss(spec: LossSpec) -> LossFunction:
    """The function that a spec names.

    Raises:
        ConfigError: The name or a parameter is unknown, a clip is negative, or the caps do not fit together.
    """
    if spec.name not in _PARAMETERS:
        raise ConfigError(f"Learner 'torch' has no loss {spec.name!r}; it has {', '.join(_PARAMETERS)}.")
    if unknown := sorted(set(spec.parameters) - _PARAMETERS[spec.name]):
        names = ", ".join(sorted(_PARAMETERS[spec.name])) or "none"
        raise ConfigError(f"Loss {spec.name!r} has no parameter {', '.join(unknown)}; it has {names}.")
    if spec.name == "cross_entropy":
        return _cross_entropy
    low, high = spec.parameters.get("clip_low", 0.0), spec.parameters.get("clip_high", 0.0)
    if not (0 <= low < 1 and high >= 0):
        raise ConfigError(f"clip_low must lie in [0, 1) and clip_high be 0 or more, not {low} and {high}.")
    weigh = build_weights(spec.parameters)
    if weigh is None:
        return lambda logprobs, inputs: _policy_gradient(logprobs, inputs, low, high)
    return lambda logprobs, inputs: _decoupled_policy_gradient(logprobs, inputs, low, high, weigh)


def _cross_entropy(logprobs: torch.Tensor, inputs: Inputs) -> TokenLoss:
    del inputs
    return TokenLoss(loss=-logprobs.sum(), sums={}, maxima={})


def _policy_gradient(logprobs: torch.Tensor, inputs: Inputs, low: float, high: float) -> TokenLoss:
    """-min(r A, clip(r, 1 - low, 1 + high) A) with r = exp(logp - sampler logp).

    PPO, arXiv 1707.06347, equation 7, per token, with a bound for each side (DAPO, arXiv 2503.14476, section 3.1).
    The ratio is to the policy that sampled, as the sampler itself reported it.
    """
    objective, sums = _clipped(logprobs, inputs.old_logprobs, inputs.advantages, low, high)
    mismatch, maxima = _mismatch(logprobs, inputs.old_logprobs)
    return TokenLoss(loss=-objective.sum(), sums=mismatch | sums, maxima=maxima)


def _decoupled_policy_gradient(
    logprobs: torch.Tensor, inputs: Inputs, low: float, high: float, weigh: WeightFunction
) -> TokenLoss:
    """-w min(r A, clip(r, 1 - low, 1 + high) A) with r = exp(logp - proximal logp) and w as `importance` has it.

    Three policies: the sampler, whose staleness w corrects; the proximal one, around which steps are clipped; the
    current one. Decoupled PPO: AReaL, arXiv 2505.24298, section 5.2, after Hilton et al., arXiv 2110.00641.
    Where the samples carry no proximal log-probabilities, the current weights are the proximal ones: r is 1, and its
    gradient that of logp.
    """
    current = logprobs.detach()
    proximal = current if inputs.proximal_logprobs is None else inputs.proximal_logprobs
    objective, sums = _clipped(logprobs, proximal, inputs.advantages, low, high)
    importance = weigh(proximal, inputs)
    mismatch, maxima = _mismatch(current, inputs.old_logprobs)
    return TokenLoss(
        loss=-(importance.weights * objective).sum(),
        sums=mismatch | sums | importance.sums,
        maxima=maxima,
        sequence_sums=importance.sequence_sums,
    )


def _clipped(
    logprobs: torch.Tensor, anchor: torch.Tensor, advantages: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """PPO's objective [N] for the ratio to the anchor, and what is to be known about that ratio."""
    ratio = bounded_ratio(logprobs - anchor)
    clipped = ratio.clamp(1.0 - low if low else None, 1.0 + high if high else None) if low or high else ratio
    plain = ratio * advantages
    objective = torch.minimum(plain, clipped * advantages)
    with torch.no_grad():
        sums = {"ratio_mean": ratio.sum(), "clip_fraction": (objective < plain).sum()}
    return objective, sums


@torch.no_grad()
def _mismatch(logprobs: torch.Tensor, sampler: torch.Tensor) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Sums and maxima of how far the current policy is from the one that sampled.

    The KL estimate is k3 of Schulman, "Approximating KL divergence" (2020), for KL(sampler || current): r - 1 - log r.
    """
    difference = logprobs - sampler
    apart = difference.abs()
    kl = bounded_ratio(difference) - 1.0 - difference
    maxima = {"logprob_difference_max": apart.max()} if apart.numel() else {}
    return {"logprob_difference_mean": apart.sum(), "kl": kl.sum()}, maxima
