"""What policy-gradient losses raise, per token: three ways to bound how far a step may take the policy.

Each is a function of the ratio of the current policy to the anchor: the weights before the iteration's first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from finqa_cli.errors import ConfigError
from finqa_plugins.learners.torch.forward import Inputs
from finqa_plugins.learners.torch.importance import bounded_ratio

Objective = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""[N] with gradient, and what is to be known about the ratio: sums over tokens without gradient, by name."""

ObjectiveFunction = Callable[[torch.Tensor, torch.Tensor, Inputs, torch.Tensor | None], Objective]
"""From log-probabilities [N] with gradient, those of the anchor [N], what the micro-batch carries, and the importance
weights [N] or None for 1. Weights multiply the ratio after its clip: with one step the product is then the ratio to the
sampler, to the bit.
"""


def build_objective(name: str, parameters: Mapping[str, float]) -> ObjectiveFunction:
    """The objective of the loss of this name.

    Raises:
        ConfigError: A clip is out of range.
    """
    low, high, dual = (parameters.get(each, 0.0) for each in ("clip_low", "clip_high", "dual_clip"))
    if not (0 <= low < 1 and high >= 0):
        raise ConfigError(f"clip_low must lie in [0, 1) and clip_high be 0 or more, not {low} and {high}.")
    if not (dual == 0 or dual > 1):
        raise ConfigError(f"dual_clip must be 0 (off) or above 1, not {dual}.")
    if name == "gspo":
        return lambda logprobs, anchor, inputs, weights: sequence_ratio(logprobs, anchor, inputs, weights, low, high)
    if name == "cispo":
        return lambda logprobs, anchor, inputs, weights: clipped_weight(logprobs, anchor, inputs, weights, low, high)
    return lambda logprobs, anchor, inputs, weights: token_ratio(logprobs, anchor, inputs, weights, low, high, dual)


def token_ratio(
    logprobs: torch.Tensor,
    anchor: torch.Tensor,
    inputs: Inputs,
    weights: torch.Tensor | None,
    low: float,
    high: float,
    dual: float,
) -> Objective:
    """min(r A, clip(r, 1 - low, 1 + high) A) with r = exp(logp - anchor).

    PPO, arXiv 1707.06347, equation 7, per token, with a bound for each side (DAPO, arXiv 2503.14476, section 3.1).
    With a dual clip, where A < 0 it is at least dual A, so that a token which became much likelier moves nothing:
    arXiv 1912.09729, "dual-clip PPO".
    """
    objective, sums = _clipped(bounded_ratio(logprobs - anchor), inputs.advantages, weights, low, high)
    if not dual:
        return objective, sums
    floor = dual * inputs.advantages if weights is None else dual * weights * inputs.advantages
    held = (inputs.advantages < 0) & (objective < floor)
    return torch.where(held, floor, objective), sums | {"dual_clip_fraction": held.sum()}


def sequence_ratio(
    logprobs: torch.Tensor, anchor: torch.Tensor, inputs: Inputs, weights: torch.Tensor | None, low: float, high: float
) -> Objective:
    """GSPO: token_ratio's form for s = exp(mean of logp - anchor over the row), the geometric mean of its ratios.

    arXiv 2507.18071, equations 5 and 7, in the form of its equation 14 (GSPO-token): each token stands for s, with
    the gradient s grad logp. Summed over a row whose advantages and weights are equal, as they are in GSPO, value and
    gradient are those of |o| times equation 5; where a weight differs by token, it goes with that token's gradient.
    """
    current = logprobs.detach()
    means = torch.stack([part.mean() for part in torch.split(current - anchor, list(inputs.lengths))])
    rows = torch.tensor(inputs.lengths, device=means.device)
    ratio = bounded_ratio(means).repeat_interleave(rows, output_size=len(current))
    return _clipped(ratio * (logprobs - current).exp(), inputs.advantages, weights, low, high)


def clipped_weight(
    logprobs: torch.Tensor, anchor: torch.Tensor, inputs: Inputs, weights: torch.Tensor | None, low: float, high: float
) -> Objective:
    """CISPO: w A logp with w = clip(r, 1 - low, 1 + high), r = exp(logp - anchor), both without gradient.

    MiniMax-M1, arXiv 2506.13585, equations 4 and 5. No token's gradient is cut off, only its weight is bounded.
    """
    with torch.no_grad():
        ratio = bounded_ratio(logprobs - anchor)
        weight = _clip(ratio, low, high)
        sums = {"ratio_mean": ratio.sum(), "clip_fraction": (weight != ratio).sum()}
    return _weighted(weight, weights) * inputs.advantages * logprobs, sums


def _clipped(
    ratio: torch.Tensor, advantages: torch.Tensor, weights: torch.Tensor | None, low: float, high: float
) -> Objective:
    clipped = _clip(ratio, low, high)
    objective = torch.minimum(_weighted(ratio, weights) * advantages, _weighted(clipped, weights) * advantages)
    with torch.no_grad():
        sums = {"ratio_mean": ratio.sum(), "clip_fraction": (clipped * advantages < ratio * advantages).sum()}
    return objective, sums


def _weighted(ratio: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    return ratio if weights is None else ratio * weights


def _clip(ratio: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return ratio.clamp(1.0 - low if low else None, 1.0 + high if high else None) if low or high else ratio
