"""Attention of a batch whose rows all begin with the same tokens.

The keys and values of that opening (system text, tool schemas) exist once, not once a row. Decoding on a CPU is bound
by reading keys and values from memory, so this is the largest single saving there.
The result is the ordinary softmax over opening and row together: the two parts are attended apart and weighed by their
masses, as flash decoding does with parts of a long row (Dao et al., 2023).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "finqa_opening"

# What torch's own scaled_dot_product_attention calls on a CPU. Called directly because it also returns the logarithm
# of the softmax's denominator, without which two parts cannot be joined.
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def opening_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    opening: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """One layer's attention, registered with transformers under `NAME`.

    Args:
        module: The layer's attention module; `layer_idx` selects its part of the opening.
        query: [N, heads, Lq, D].
        key: [N, kv heads, T, D] of the rows, without the opening.
        value: Like `key`.
        attention_mask: [N, 1, Lq, T] 0 where a key of the row may be seen, -inf elsewhere; the opening is seen by all.
        scaling: Factor of the scores; default 1/sqrt(D).
        opening: [layers, 2, kv heads, P, D] keys and values of the opening, or None.
        kwargs: Passed on when there is no opening.

    Returns:
        [N, Lq, heads, D] and None.
    """
    if opening is None:
        attended: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return attended
    rows, heads, length, width = query.shape
    kv_heads = key.shape[1]
    folded = heads // kv_heads * length  # the queries of all heads that share one key head
    opening_key, opening_value = opening[module.layer_idx]  # type: ignore[index]
    query = query.reshape(rows, kv_heads, folded, width)
    together = query.transpose(0, 1).reshape(1, kv_heads, rows * folded, width)
    shared, shared_mass = _FLASH(together, opening_key[None], opening_value[None], scale=scaling)
    shared = shared.view(kv_heads, rows, folded, width).transpose(0, 1)
    shared_mass = shared_mass.view(kv_heads, rows, folded).transpose(0, 1)

    if attention_mask is not None and length > 1:
        attention_mask = attention_mask.expand(rows, folded // length, length, -1).reshape(rows, 1, folded, -1)
    own, own_mass = _FLASH(query, key, value, attn_mask=attention_mask, scale=scaling)
    share = torch.sigmoid(own_mass.view(rows, kv_heads, folded) - shared_mass).to(own.dtype)
    output = torch.lerp(shared, own, share[..., None])
    return output.reshape(rows, heads, length, width).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, opening_attention)
