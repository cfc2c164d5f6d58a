"""Attention of a batch whose rows all begin with the same tokens.

The keys and values of that opening (system text, tool schemas) are kept once, not once per row. Decoding on a CPU is
bound by reading keys and values from memory, so this is the largest single saving there. The result is the ordinary
softmax over opening and row together: attention to the two parts is computed separately and weighted by their masses,
as in flash decoding (Dao et al., 2023). In layers with a sliding window, a query sees what the window leaves of both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from finqa_plugins.attention import explicit_attention, with_sinks

OPENING_ATTENTION = "finqa_opening"

FEW_QUERIES = 8
"""In 16 bits on a CPU, up to so many new tokens of a row attend to its keys once for all heads that share them. With a
copy of the keys for each head, torch's kernel took 7 times as long for one token (64 rows of 330 tokens, 3 heads); in
float32 there is no difference."""

# What torch's own scaled_dot_product_attention calls on a CPU. Called directly because it also returns the logarithm
# of the softmax's denominator, without which two parts cannot be joined.
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(slots=True)
class SharedOpening:
    """An opening, and the queries of one forward pass.

    Attributes:
        tensor: [layers, 2, kv heads, P, D] keys and values of the opening.
        positions: [N, L] place of each query in its sequence, P at least.
    """

    tensor: Tensor
    positions: Tensor
    _seen: dict[int | None, tuple[int, Tensor | None]] = field(default_factory=dict)

    def seen(self, window: int | None) -> tuple[int, Tensor | None]:
        """First token that any query sees, P if none does, and an additive mask [N, L, P - first] of the others.

        The mask is None where all see all from there on. It has no -inf: for a query that sees nothing the kernel would
        return a mass of 0.
        """
        if window not in self._seen:
            self._seen[window] = self._find(window)
        return self._seen[window]

    def _find(self, window: int | None) -> tuple[int, Tensor | None]:
        length = self.tensor.shape[-2]
        if window is None:
            return 0, None
        firsts = self.positions - (window - 1)
        first = min(max(int(firsts.min()), 0), length)
        if first == length or int(firsts.max()) <= first:
            return first, None
        hidden = torch.arange(first, length, device=firsts.device) < firsts[..., None]
        mask = torch.zeros(hidden.shape, dtype=self.tensor.dtype, device=firsts.device)
        return first, mask.masked_fill_(hidden, torch.finfo(mask.dtype).min)


def opening_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    opening: SharedOpening | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """One layer's attention, registered with transformers under `OPENING_ATTENTION`.

    Args:
        module: The layer's attention module; `layer_idx` selects its part of the opening.
        query: [N, heads, L, D].
        key: [N, kv heads, T, D] of the rows, without the opening.
        value: Like `key`.
        attention_mask: [N, 1, L, T] 0 where a key of the row may be seen, -inf elsewhere.
        scaling: Factor of the scores; default 1/sqrt(D).
        opening: The opening, or None.
        sliding_window: Tokens that a query sees, its own included; None: all.
        softcap: Bound of the scores; None: none.
        s_aux: [heads] score of a key without a value; None: none.
        kwargs: Passed on when there is no opening.

    Returns:
        [N, L, heads, D] and None.
    """
    if sliding_window is not None and key.shape[2] > sliding_window:
        key, value, attention_mask = _within(sliding_window, query.shape[2], key, value, attention_mask)
    first, opening_mask = opening.seen(sliding_window) if opening else (0, None)
    if opening and first == opening.tensor.shape[-2]:
        opening = None
    folds = query.dtype is not torch.float32 and query.device.type == "cpu" and query.shape[2] <= FEW_QUERIES
    if opening is None and softcap is None and s_aux is None and not folds:
        attended: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return attended
    rows, heads, length, width = query.shape
    kv_heads = key.shape[1]
    shared_heads = heads // kv_heads
    folded = shared_heads * length  # the queries of all heads that share one key head
    query = query.reshape(rows, kv_heads, folded, width)
    if length > 1:
        attention_mask = attention_mask.expand(rows, shared_heads, length, -1).reshape(rows, 1, folded, -1)
    output, mass = _attend(query, key, value, attention_mask, scaling, softcap)
    if opening is not None:
        together = query.transpose(0, 1).reshape(1, kv_heads, rows * folded, width)
        if opening_mask is not None:
            opening_mask = opening_mask[:, None].expand(rows, shared_heads, length, -1)
            opening_mask = opening_mask.reshape(1, 1, rows * folded, -1)
        shared_key, shared_value = (part[None, :, first:] for part in opening.tensor[module.layer_idx])  # type: ignore[index]
        shared, shared_mass = _attend(together, shared_key, shared_value, opening_mask, scaling, softcap)
        shared = shared.view(kv_heads, rows, folded, width).transpose(0, 1)
        shared_mass = shared_mass.view(kv_heads, rows, folded).transpose(0, 1)
        output = torch.lerp(shared, output, torch.sigmoid(mass - shared_mass).to(output.dtype)[..., None])
        mass = mass if s_aux is None else torch.logaddexp(mass, shared_mass)
    if s_aux is not None:
        sinks = s_aux.view(kv_heads, shared_heads, 1).expand(-1, -1, length).reshape(kv_heads, folded)
        output = with_sinks(output, mass, sinks)
    return output.reshape(rows, heads, length, width).transpose(1, 2).contiguous(), None


AttentionInterface.register(OPENING_ATTENTION, opening_attention)


def _within(window: int, length: int, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The columns that the last `length` queries of a row see in a window, and the mask of these.

    Rows have no gaps, so tokens are as far apart as their columns.
    """
    columns = key.shape[2]
    first = max(0, columns - length - window + 1)
    key, value, mask = key[:, :, first:], value[:, :, first:], mask[..., first:]
    if length > 1:
        places = torch.arange(first, columns, device=key.device)
        mask = mask.masked_fill(places <= places[-length:, None] - window, float("-inf"))
    return key, value, mask


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """[B, kv heads, Q, D], and the mass [B, kv heads, Q] of each query."""
    if softcap is not None:
        return explicit_attention(query, key, value, mask, scaling=scaling, softcap=softcap)
    found: tuple[Tensor, Tensor] = _FLASH(query, key, value, attn_mask=mask, scale=scaling)
    return found[0], found[1].view(query.shape[:3])
