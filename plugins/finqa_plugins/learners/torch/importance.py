"""Importance weights: how much likelier the anchor is than the sampler to sample what was sampled.

With k = exp(anchor logp - sampler logp) of a token, a token's weight, without gradient, is:

- `token`: min(k, cap). Little variance, but it leaves out how tokens change which later states are reached.
- `sequence`: the product of k over the sampled tokens of its sequence, or 0 where that is above cap. Unbiased but for
  the cap; the weights of the others are neither truncated nor averaged over the length, so that their spread grows with
  it: at 0.03 nats per token and 2,000 tokens the deviation of the log product is 1.3.
- `icepop`: k within [floor, cap], else 0.
- `geometric`: 1 where the geometric mean of k over its sequence is within [floor, cap], else 0: a rejection that means
  the same at every length, and no correction of what is kept.

Sources: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025,
https://fengyao.notion.site/off-policy-rl) for truncation; Liu, Li et al., "When Speed Kills Stability" (2025,
https://richardli.xyz/rl-collapse) for products, geometric means and for masking, which does not let what is least
trusted weigh most; Ling Team, "Every Step Evolves", arXiv 2510.18855, for IcePop, M(k) = k in [alpha, beta] and 0
elsewhere, with 0.5 and 5. The forms are those of TRL's `vllm_importance_sampling_mode` `token_truncate` and
`sequence_mask`, and of verl's `rollout_is=token`, `token` with two thresholds (IcePop) and preset `decoupled_geo_rs`,
with verl's bound exp(20) on any ratio. As in TRL, masked tokens stay in the number that the loss is divided by: the
estimate is a mean over all that was sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from finqa_cli.errors import ConfigError
from finqa_plugins.learners.torch.forward import Inputs

LARGEST_LOG_RATIO = 20.0
"""exp(20) = 4.9e8: beyond it a ratio is only a danger to the arithmetic."""

_CAPS = ("token_cap", "sequence_cap", "icepop_cap", "geometric_cap")
_FLOORS = {"icepop_cap": "icepop_floor", "geometric_cap": "geometric_floor"}

WEIGHTS = frozenset({*_CAPS, *_FLOORS.values()})
"""Names of all parameters of a loss that are read here."""


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
"""From the anchor's log-probabilities [N], without gradient, and what the micro-batch carries."""


def build_weights(parameters: Mapping[str, float]) -> WeightFunction | None:
    """The weights that a loss asks for by one of the caps; None when all are 0 or missing.

    Raises:
        ConfigError: Several caps are above 0, one is neither 0 nor at least 1, or a floor does not lie in (0, 1] or
            has no cap.
    """
    caps = {name: parameters.get(name, 0.0) for name in _CAPS}
    for name, cap in caps.items():
        if not (cap == 0 or cap >= 1):
            raise ConfigError(f"{name} must be 0 (off) or at least 1, not {cap}.")
    chosen = [name for name, cap in caps.items() if cap]
    if len(chosen) > 1:
        raise ConfigError(f"Of {' and '.join(chosen)} only one may be above 0.")
    for name, floor in _FLOORS.items():
        given = parameters.get(floor, 0.0)
        if (given != 0) != (name in chosen) or not 0 <= given <= 1:
            raise ConfigError(
                f"{floor} must lie in (0, 1] where {name} is above 0, and is unset elsewhere; it is {given}."
            )
    if not chosen:
        return None
    (name,) = chosen
    cap, floor_value = caps[name], parameters.get(_FLOORS.get(name, ""), 0.0)
    match name:
        case "token_cap":
            return lambda anchor, inputs: _truncated_tokens(anchor, inputs, cap)
        case "sequence_cap":
            return lambda anchor, inputs: _products(anchor, inputs, cap)
        case "icepop_cap":
            return lambda anchor, inputs: _masked_tokens(anchor, inputs, floor_value, cap)
        case _:
            return lambda anchor, inputs: _masked_means(anchor, inputs, floor_value, cap)


def bounded_ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp, kept within exp(-20) and exp(20); beyond them its gradient is 0."""
    return log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


def _truncated_tokens(anchor: torch.Tensor, inputs: Inputs, cap: float) -> Importance:
    ratio = bounded_ratio(anchor - inputs.old_logprobs)
    weights = ratio.clamp(max=cap)
    sums = {"importance_weight_mean": weights.sum(), "importance_truncated": (ratio > cap).sum()}
    return Importance(weights=weights, sums=sums)


def _masked_tokens(anchor: torch.Tensor, inputs: Inputs, floor: float, cap: float) -> Importance:
    ratio = bounded_ratio(anchor - inputs.old_logprobs)
    masked = (ratio < floor) | (ratio > cap)
    weights = ratio.masked_fill(masked, 0.0)
    return Importance(weights=weights, sums={"importance_weight_mean": weights.sum(), "tokens_masked": masked.sum()})


def _products(anchor: torch.Tensor, inputs: Inputs, cap: float) -> Importance:
    ratio = bounded_ratio(torch.stack([part.sum() for part in _by_sequence(anchor, inputs)]))
    masked = ratio > cap
    return _of_sequences(ratio.masked_fill(masked, 0.0), masked, inputs)


def _masked_means(anchor: torch.Tensor, inputs: Inputs, floor: float, cap: float) -> Importance:
    mean = bounded_ratio(torch.stack([part.mean() for part in _by_sequence(anchor, inputs)]))
    masked = (mean < floor) | (mean > cap)
    return _of_sequences((~masked).to(anchor.dtype), masked, inputs)


def _by_sequence(anchor: torch.Tensor, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return torch.split(anchor - inputs.old_logprobs, list(inputs.lengths))


def _of_sequences(weights: torch.Tensor, masked: torch.Tensor, inputs: Inputs) -> Importance:
    """Each sequence's weight for all of its tokens."""
    lengths = torch.tensor(inputs.lengths, device=weights.device)
    spread = weights.repeat_interleave(lengths, output_size=sum(inputs.lengths))
    sums = {"importance_weight_mean": spread.sum()}
    return Importance(weights=spread, sums=sums, sequence_sums={"sequences_masked": masked.sum()})
