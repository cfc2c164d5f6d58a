"""Importance weights: how much likelier the proximal policy is than the sampler to sample what was sampled.

Each weight is exp(proximal logp - sampler logp), without gradient. `token` truncates it per token; that has little
variance, but leaves out how tokens change which later states are reached. `sequence` takes the product over the
sampled tokens of a sequence for each of them, unbiased but for the cap, and drops sequences above it: their weight is
0 and that of the others is the product itself, neither truncated nor averaged over the length.

Sources: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025,
https://fengyao.notion.site/off-policy-rl) for truncation; Liu, Li et al., "When Speed Kills Stability" (2025,
https://richardli.xyz/rl-collapse) for products and for masking, which does not let what is least trusted weigh most.
The forms are those of TRL's `vllm_importance_sampling_mode` `token_truncate` and `sequence_mask`, the first that of
verl's `rollout_is=token` as well, with verl's bound exp(20) on any ratio. As in TRL, tokens of masked sequences stay
in the number that the loss is divided by: the estimate is a mean over all that was sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from finqa_cli.errors import ConfigError
from finqa_plugins.torch_learner.forward import Inputs

LARGEST_LOG_RATIO = 20.0
"""exp(20) = 4.9e8: beyond it a ratio is only a danger to the arithmetic."""


@dataclass(frozen=True, slots=True)
class Importance:
    """Weights of the N tokens of a micro-batch.

    Attributes:
        weights: [N] without gradient.
        sums: Scalars by name, sums over tokens.
        sequence_sums: Scalars by name, sums over sequences.
    """

    weights: torch.Tensor
    sums: dict[str, torch.Tensor]
    sequence_sums: dict[str, torch.Tensor] = field(default_factory=dict)


WeightFunction = Callable[[torch.Tensor, Inputs], Importance]
"""From the proximal log-probabilities [N], without gradient, and what the micro-batch carries."""


def build_weights(parameters: Mapping[str, float]) -> WeightFunction | None:
    """The weights that a loss asks for by `token_cap` or `sequence_cap`; None when both are 0 or missing.

    Raises:
        ConfigError: Both are above 0, or one is neither 0 nor at least 1.
    """
    token_cap, sequence_cap = (parameters.get(name, 0.0) for name in ("token_cap", "sequence_cap"))
    for name, cap in (("token_cap", token_cap), ("sequence_cap", sequence_cap)):
        if not (cap == 0 or cap >= 1):
            raise ConfigError(f"{name} must be 0 (off) or at least 1, not {cap}.")
    if token_cap and sequence_cap:
        raise ConfigError("Of token_cap and sequence_cap only one may be above 0.")
    if token_cap:
        return lambda proximal, inputs: _token_weights(proximal, inputs, token_cap)
    if sequence_cap:
        return lambda proximal, inputs: _sequence_weights(proximal, inputs, sequence_cap)
    return None


def bounded_ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp, kept within exp(-20) and exp(20); beyond them its gradient is 0."""
    return log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


def _token_weights(proximal: torch.Tensor, inputs: Inputs, cap: float) -> Importance:
    ratio = bounded_ratio(proximal - inputs.old_logprobs)
    weights = ratio.clamp(max=cap)
    sums = {"importance_weight_mean": weights.sum(), "importance_truncated": (ratio > cap).sum()}
    return Importance(weights=weights, sums=sums)


def _sequence_weights(proximal: torch.Tensor, inputs: Inputs, cap: float) -> Importance:
    parts = torch.split(proximal - inputs.old_logprobs, list(inputs.lengths))
    ratio = bounded_ratio(torch.stack([part.sum() for part in parts]))
    masked = ratio > cap
    kept = ratio.masked_fill(masked, 0.0)
    weights = kept.repeat_interleave(torch.tensor(inputs.lengths, device=kept.device), output_size=len(proximal))
    sums = {"importance_weight_mean": weights.sum()}
    return Importance(weights=weights, sums=sums, sequence_sums={"sequences_masked": masked.sum()})
