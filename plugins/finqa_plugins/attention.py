"""Attention that PyTorch's kernels do not compute (capped scores, sinks), for the engine and the learner, and a way to
check sliding windows on short rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout


def explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attention with all its scores in memory, and the mass of each query, which no kernel with gradients returns.

    Args:
        query: [B, H, Q, D].
        key: [B, K, C, D]; each serves H / K heads.
        value: Like `key`.
        mask: Broadcast to [B, H, Q, C]: true where a key is seen, or numbers to add; None: every key is seen.
        scaling: Factor of the scores; None: 1 / sqrt(D).
        softcap: Bound of the scaled scores, by softcap * tanh(score / softcap), as in Gemma 2 (arXiv 2408.00118).
        dropout_p: Share of the weights that are dropped.

    Returns:
        [B, H, Q, D], and [B, H, Q] of float32 or wider, the logarithm of the softmax's denominator. Both are finite
        for a query that sees no key, and without a meaning.
    """
    if (shared := query.shape[1] // key.shape[1]) > 1:
        key, value = (part.repeat_interleave(shared, dim=1) for part in (key, value))
    scores = query @ key.transpose(2, 3)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    scores = scores * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    lowest = torch.finfo(torch.float32).min  # not -inf, of which only nan could be made
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask.float().clamp(min=lowest)
        )
    mass = scores.logsumexp(-1)
    weights = dropout((scores - mass[..., None]).exp().to(value.dtype), dropout_p)
    return weights @ value, mass


def with_sinks(output: Tensor, mass: Tensor, sinks: Tensor) -> Tensor:
    """The output [..., D] of queries with these masses [...], if a key of score `sinks` and value 0 were among theirs.

    Models of family gpt-oss have such a score for each head; `sinks` is broadcast to [...].
    """
    return output * torch.sigmoid(mass - sinks.to(mass.dtype))[..., None].to(output.dtype)


@contextmanager
def small_windows(model: Any, size: int) -> Iterator[None]:
    """Gives all layers of a model that have a sliding window one of `size` tokens, so that a short row exceeds it.

    Attention functions get the window from the layer, and masks are made from the one of the configuration.
    """
    owners = [model.config.get_text_config(), *model.modules()]
    windows = [(owner, getattr(owner, "sliding_window", None)) for owner in owners]
    windows = [(owner, window) for owner, window in windows if type(window) is int]
    try:
        for owner, _ in windows:
            owner.sliding_window = size
        yield
    finally:
        for owner, window in windows:
            owner.sliding_window = window
