"""Packed rows: many sequences as one row without padding, in which a common beginning occurs only once.

`pack_row` builds the row; the rest is attention over it, within each sequence only, in some layers of some models only
to the last tokens (sliding windows). The attention function is registered with transformers' `AttentionInterface`. It
gets `segments` through the model's keyword arguments, so that recomputation in the backward pass gets them too. Without
`segments` it is causal attention over rows padded on the right.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import structlog
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from finqa_cli.errors import ConfigError
from finqa_plugins.attention import explicit_attention, small_windows, with_sinks
from finqa_plugins.model_facts import TOLERANCE, text_decoder

log = structlog.get_logger(__name__)

_NAME = "finqa_segments"

_QUERIES_PER_BLOCK = 256
"""Queries of a block, in a segment that follows others. The size of a block's mask is at most this times the longest
sequence, and a block computes little that is masked out."""

_LARGEST_HEAD = 256
"""Largest size of a head that FlashAttention supports."""

_UNSUPPORTED = ("position_bias", "cache")
"""Options of attention functions that are not supported here."""

SHORTEST_SHARED = 32
"""Ids that sequences must have in common to share a segment: with fewer, another segment costs more than it saves."""


@dataclass(frozen=True)
class Segments:
    """The segments of a row, S of them one after the other.

    A token attends to the earlier tokens of its segment and to all tokens of the earlier segments on its path.

    Attributes:
        sizes: [S] tokens of each.
        paths: [S] the indices of the segments from the beginning of a sequence to the end of each segment, which is
            last itself.
    """

    sizes: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]

    @cached_property
    def contexts(self) -> tuple[int, ...]:
        """[S] number of tokens on the path to the end of each segment."""
        return tuple(sum(self.sizes[index] for index in path) for path in self.paths)

    @cached_property
    def alike(self) -> tuple[tuple[int, ...], ...]:
        """The segments in groups of equal size and equal context, which can be computed as one rectangle."""
        groups: dict[tuple[int, int], list[int]] = {}
        for index, shape in enumerate(zip(self.sizes, self.contexts, strict=True)):
            groups.setdefault(shape, []).append(index)
        return tuple(tuple(group) for group in groups.values())


@dataclass(frozen=True, slots=True)
class PackedRow:
    """A row of T tokens that contains B sequences.

    Attributes:
        token_ids: [T].
        position_ids: [T] place of each token in the sequences that it belongs to.
        segments: The segments, which determine the attention.
        places: [B][L] index into the row of each token of each sequence.
    """

    token_ids: tuple[int, ...]
    position_ids: tuple[int, ...]
    segments: Segments
    places: tuple[tuple[int, ...], ...]


def pack_row(sequences: Sequence[Sequence[int]]) -> PackedRow:
    """The sequences as a tree of segments, parents before children: a radix tree whose edges have 32 ids or more,
    except for those that end a sequence. Deterministic.
    """
    token_ids: list[int] = []
    position_ids: list[int] = []
    sizes: list[int] = []
    paths: list[tuple[int, ...]] = []
    places: list[list[int]] = [[] for _ in sequences]
    ordered = sorted(range(len(sequences)), key=lambda row: tuple(sequences[row]))
    pending: list[tuple[list[int], int, tuple[int, ...]]] = [(ordered, 0, ())] if ordered else []
    while pending:
        rows, depth, path = pending.pop()
        shared = _shared(sequences[rows[0]], sequences[rows[-1]])
        if len(rows) > 1 and shared - depth < SHORTEST_SHARED:
            pending.extend((run, depth, path) for run in reversed(list(_runs(sequences, rows, depth))))
            continue
        path = (*path, len(sizes))
        for row in rows:
            places[row].extend(range(len(token_ids), len(token_ids) + shared - depth))
        token_ids.extend(sequences[rows[0]][depth:shared])
        position_ids.extend(range(depth, shared))
        sizes.append(shared - depth)
        paths.append(path)
        if longer := [row for row in rows if len(sequences[row]) > shared]:
            pending.append((longer, shared, path))
    return PackedRow(
        token_ids=tuple(token_ids),
        position_ids=tuple(position_ids),
        segments=Segments(sizes=tuple(sizes), paths=tuple(paths)),
        places=tuple(map(tuple, places)),
    )


def _shared(first: Sequence[int], last: Sequence[int]) -> int:
    """Number of common first ids. For the first and last of sorted sequences it is that of all between them."""
    alike = (place for place, (left, right) in enumerate(zip(first, last, strict=False)) if left != right)
    return next(alike, min(len(first), len(last)))


def _runs(sequences: Sequence[Sequence[int]], rows: Sequence[int], depth: int) -> Iterator[list[int]]:
    """Groups sorted rows whose next `SHORTEST_SHARED` ids are equal."""

    def key(row: int) -> tuple[int, ...]:
        following = tuple(sequences[row][depth : depth + SHORTEST_SHARED])
        return following if len(following) == SHORTEST_SHARED else (-1 - row,)

    for _, run in itertools.groupby(rows, key):
        yield list(run)


_PROBE = Segments(sizes=(3, 5, 4, 6), paths=((0,), (0, 1), (0, 2), (3,)))
_PROBE_WINDOW = 4
"""Sliding window during the probe: shorter than its sequences, and than their parts behind the shared segment."""

_KNOWN_LAYERS = {"full_attention", "sliding_attention"}


def takes_packed_rows(base: Any, packing: Literal["auto", "on", "off"]) -> bool:
    """Makes the model use packed rows if it can, unless `packing` is off; returns whether it does.

    Raises:
        ConfigError: Packing is on, and the model does not support it.
    """
    if packing == "off":
        return False
    reason = use_packed_rows(base)
    if reason and packing == "on":
        raise ConfigError(
            f"learner option packing=on, but model {base.name_or_path!r} does not support packed rows: {reason}.",
            remedy="--set learner.options.packing=auto",
        )
    if reason:
        # Log: The learner loads such a model; training is slower.
        log.info(
            "micro-batches are padded: the model does not support packed rows", model=base.name_or_path, reason=reason
        )
    return not reason


def use_packed_rows(base: Any) -> str | None:
    """Makes a causal language model use packed rows if it computes them correctly.

    Its hidden states for a packed row are compared with those of its sequences as padded rows.

    Returns:
        None, or the reason why it cannot; then the model is unchanged.
    """
    if not getattr(base, "_supports_attention_backend", False):
        return "its architecture does not support a choice of the attention"
    config = base.config.get_text_config()
    if reason := _partial_attention(config):
        return reason
    before, training = base.config._attn_implementation, base.training
    base.eval()
    try:
        with torch.no_grad(), small_windows(base, _PROBE_WINDOW):
            # not the first ids: models were hardly trained on those, so their states are mostly rounding in 16 bits
            ids = (torch.arange(sum(_PROBE.sizes), device=base.device) + 1) * 7919 % config.vocab_size
            parts = torch.split(ids, list(_PROBE.sizes))
            rows = [torch.cat([parts[index] for index in path]) for path in _PROBE.paths]
            padded = _states(base, pad_sequence(rows, batch_first=True))
            places = zip(padded, _PROBE.contexts, _PROBE.sizes, strict=True)
            wanted = torch.cat([states[end - size : end] for states, end, size in places])
            attend_within_segments(base)
            positions = [torch.arange(end - size, end) for size, end in zip(_PROBE.sizes, _PROBE.contexts, strict=True)]
            found = _states(base, ids[None], position_ids=torch.cat(positions).to(ids.device)[None], segments=_PROBE)[0]
        difference = float((found - wanted).norm() / wanted.norm())
        equal = difference <= TOLERANCE.get(base.dtype, 1e-3)
        reason = None if equal else f"its states for one differ by {difference:.0e} from those of its sequences"
    except Exception as error:  # a model's own code may raise anything for options that it does not know
        reason = f"{type(error).__name__}: {error}"
    finally:
        base.train(training)
    if reason:
        base.set_attn_implementation(before)
    return reason


def attend_within_segments(base: Any) -> None:
    """Makes a model use packed rows, without a check."""
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, segment_attention)
    base.set_attn_implementation(_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """How a layer attends.

    Attributes:
        scaling: Factor on the products; None: 1 / sqrt(D).
        window: Tokens that a token attends to, itself included; None: all earlier ones.
        softcap: Bound of the scaled products; None: none.
        sinks: [H] score of a key without a value; None: none.
        dropout: Share of the weights that are dropped.
    """

    scaling: float | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    dropout: float = 0.0

    @property
    def explicit(self) -> bool:
        """Whether no kernel of PyTorch computes it."""
        return self.softcap is not None or self.sinks is not None


def segment_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    segments: Segments | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a packed row; the signature is that of transformers' attention functions.

    Args:
        module: The attention layer.
        query: [1, H, T, D].
        key: [1, K, T, D]; each serves H / K heads.
        value: [1, K, T, D].
        attention_mask: None: `segments` determines the attention.
        scaling: See `Layer`, as for the next four.
        dropout: Share of dropped weights.
        sliding_window: Number of tokens.
        softcap: Bound of products.
        s_aux: Sinks.
        segments: Segments of the row; None: [B, H, T, D] are rows that are padded on the right.
        options: Further arguments of the model.

    Returns:
        [1, T, H, D], and None for the weights.

    Raises:
        ValueError: The model uses an option that is not supported here.
    """
    unknown = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if unknown or attention_mask is not None or key.shape[2] != query.shape[2]:
        raise ValueError(f"packed rows go without masks, earlier keys, {', '.join(_UNSUPPORTED)}")
    layer = Layer(scaling=scaling, window=sliding_window, softcap=softcap, sinks=s_aux, dropout=dropout)
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # as SDPA does; norms leave queries and keys in float32
        query, key, value = (part.to(torch.get_autocast_dtype(kind)) for part in (query, key, value))
    if segments is None:
        return _lower_right(query, key, value, layer).transpose(1, 2).contiguous(), None
    kernel = _variable_length_kernel()
    if kernel and kind == "cuda" and _fits(query) and not dropout and not layer.explicit:
        return _variable_length(kernel, query, key, value, layer, segments), None
    return _by_groups(query, key, value, layer, segments), None


def _by_groups(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: Layer, segments: Segments
) -> torch.Tensor:
    """[1, T, H, D], with one call of SDPA for all segments of equal shape."""
    queries, keys, values = (torch.split(part, list(segments.sizes), dim=2) for part in (query, key, value))
    outputs = list(queries)
    for group in segments.alike:
        own = torch.cat([queries[index] for index in group])
        seen_keys, seen_values = (
            torch.cat([torch.cat([part[step] for step in segments.paths[index]], dim=2) for index in group])
            for part in (keys, values)
        )
        found = _lower_right(own, seen_keys, seen_values, layer)
        for index, output in zip(group, torch.split(found, 1), strict=True):
            outputs[index] = output
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous()


def _lower_right(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: Layer) -> torch.Tensor:
    """[B, H, Q, D]: causal attention of the last Q of C tokens; key and value are [B, K, C, D].

    Rows no longer than the window are computed as without one.
    """
    attend: Callable[..., torch.Tensor] = functools.partial(
        scaled_dot_product_attention,
        enable_gqa=query.shape[1] != key.shape[1],
        scale=layer.scaling,
        dropout_p=layer.dropout,
    )
    seen = key.shape[2] - query.shape[2]
    window = layer.window if layer.window is not None and layer.window < key.shape[2] else None
    if not (seen or window or layer.explicit):
        return attend(query, key, value, is_causal=True)
    outputs = []
    for block in torch.split(query, _QUERIES_PER_BLOCK, dim=2):
        before, seen = seen, seen + block.shape[2]
        first = max(0, before - window + 1) if window else 0
        mask = torch.ones(block.shape[2], seen - first, dtype=torch.bool, device=query.device).tril_(before - first)
        if window:
            mask.triu_(before - first - window + 1)
        keys, values = (part[:, :, first:seen] for part in (key, value))
        if layer.explicit:
            outputs.append(_explicitly(block, keys, values, mask, layer))
        else:
            outputs.append(attend(block, keys, values, attn_mask=mask))
    return torch.cat(outputs, dim=2)


def _explicitly(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, layer: Layer
) -> torch.Tensor:
    """[B, H, Q, D]: attention where the mask [Q, C] is true, with capped products and sinks."""
    output, mass = explicit_attention(
        query, key, value, mask, scaling=layer.scaling, softcap=layer.softcap, dropout_p=layer.dropout
    )
    return output if layer.sinks is None else with_sinks(output, mass, layer.sinks[:, None])


def _variable_length(
    kernel: Callable[..., torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layer: Layer,
    segments: Segments,
) -> torch.Tensor:
    """[1, T, H, D], with one call for all segments. FlashAttention aligns a causal window at the lower right."""
    steps = [step for path in segments.paths for step in path]
    if len(steps) > len(segments.paths):
        key, value = (_gathered(part, segments, steps) for part in (key, value))
    shared: dict[str, bool] = {}
    if (heads := query.shape[1] // key.shape[1]) > 1 and _shares_heads(kernel):
        shared = {"enable_gqa": True}
    elif heads > 1:
        key, value = (part.repeat_interleave(heads, dim=1) for part in (key, value))
    packed = (part[0].transpose(0, 1).contiguous() for part in (query, key, value))
    ends = (_ends(segments.sizes, query.device), _ends(segments.contexts, query.device))
    longest = (max(segments.sizes), max(segments.contexts))
    earlier = -1 if layer.window is None or layer.window >= longest[1] else layer.window - 1  # without the query's own
    return kernel(*packed, *ends, *longest, scale=layer.scaling, window_size=(earlier, 0), **shared)[None]


def _fits(query: torch.Tensor) -> bool:
    """Whether FlashAttention supports heads of this dtype and size; SDPA would pad them, the kernel does not."""
    size = query.shape[-1]
    return query.dtype in (torch.bfloat16, torch.float16) and size <= _LARGEST_HEAD and size % 8 == 0


def _gathered(part: torch.Tensor, segments: Segments, steps: list[int]) -> torch.Tensor:
    split = torch.split(part, list(segments.sizes), dim=2)
    return torch.cat([split[step] for step in steps], dim=2)


@functools.lru_cache(maxsize=8)
def _ends(sizes: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """[S + 1] int32: 0 and the end of each segment. Cached, because every layer needs the same."""
    return torch.tensor([0, *sizes], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)


@functools.cache
def _variable_length_kernel() -> Callable[..., torch.Tensor] | None:
    """`torch.nn.attention.varlen.varlen_attn`, if PyTorch has it with windows (from 2.11 on)."""
    try:
        kernel: Callable[..., torch.Tensor] = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except ImportError:
        return None
    return kernel if {"window_size", "scale"} <= set(inspect.signature(kernel).parameters) else None


@functools.cache
def _shares_heads(kernel: Callable[..., torch.Tensor]) -> bool:
    """Whether the kernel supports fewer heads of keys than of queries: `varlen_attn` does since PyTorch 2.12."""
    return "enable_gqa" in inspect.signature(kernel).parameters


def _partial_attention(config: Any) -> str | None:
    """Why layers of this configuration do not attend to all tokens, or all of a window; None without a sign of that."""
    if kinds := set(getattr(config, "layer_types", None) or ()) - _KNOWN_LAYERS:
        return f"it has layers of {', '.join(sorted(kinds))}"
    if not getattr(config, "layer_types", None) and getattr(config, "attention_chunk_size", None):
        return "its attention is limited (attention_chunk_size)"
    return None


def _states(base: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    """[N, L, H] last hidden states of rows [N, L], in float32."""
    hidden: torch.Tensor = text_decoder(base)(input_ids=ids, use_cache=False, **options).last_hidden_state
    return hidden.float()
