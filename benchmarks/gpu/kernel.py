"""Part `kernel`: attention over packed rows, forward and backward, against attention written out in float64.

Two paths of the learner: one call of PyTorch's kernel for variable lengths, which CUDA has in bfloat16, and calls of
SDPA by groups of segments. Segments have unequal lengths of queries and keys, prefixes that others share, and fewer
heads of keys than of queries.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.figures import Figure, at_most, exactly, note
from benchmarks.gpu.device import device, on_cuda, seconds
from benchmarks.gpu.scales import Scale
from benchmarks.gpu.updates import relative
from finqa_plugins.learners.torch import packed_rows
from finqa_plugins.learners.torch.packed_rows import Layer, Segments

HEADS, HEAD_DIM = 16, 128
KEY_VALUE_HEADS = (16, 4, 1)
FLOAT32_LIMIT = 1e-4
BFLOAT16_LIMIT = 2e-2
"""bfloat16 has 8 bits: rounding is a relative 2e-3 of each operand, and gradients of shared keys add up several. In the
segment of 5 tokens a token that is hidden wrongly, or seen wrongly, shows above 1e-1."""

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Segments], torch.Tensor]
"""query [1, H, T, D], key and value [1, K, T, D] to [1, T, H, D]."""


def kernel(scale: Scale, scratch: Path) -> list[Figure]:
    """Errors of output and gradients, and the time of the two paths."""
    del scratch
    segments = _segments(scale.kernel_tokens)
    figures = []
    found = packed_rows._variable_length_kernel()
    if on_cuda():
        figures.append(exactly("this PyTorch has the kernel for variable lengths", found is not None, 1))
    for heads in KEY_VALUE_HEADS:
        figures += _errors("SDPA by groups", _by_groups, segments, heads, torch.float32, FLOAT32_LIMIT)
        figures += _errors("SDPA by groups", _by_groups, segments, heads, torch.bfloat16, BFLOAT16_LIMIT)
        if found is not None and on_cuda():
            figures += _errors("variable lengths", _variable, segments, heads, torch.bfloat16, BFLOAT16_LIMIT)
    figures.append(note("SDPA by groups: ms forward and backward", _milliseconds(_by_groups, segments)))
    if found is not None and on_cuda():
        figures.append(note("variable lengths: ms forward and backward", _milliseconds(_variable, segments)))
    return figures


def reference(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments) -> torch.Tensor:
    """softmax(Q K' / sqrt(D)) V of each segment over all tokens on its path, written out."""
    shared = query.shape[1] // key.shape[1]
    queries, keys, values = (torch.split(part, list(segments.sizes), dim=2) for part in (query, key, value))
    outputs = []
    for own, path in zip(queries, segments.paths, strict=True):
        seen, told = (torch.cat([part[step] for step in path], dim=2)[0] for part in (keys, values))
        seen, told = (part.repeat_interleave(shared, dim=0) for part in (seen, told))
        products = own[0] @ seen.transpose(1, 2) / HEAD_DIM**0.5
        length, context = products.shape[1:]
        hidden = torch.ones(length, context, dtype=torch.bool, device=products.device).triu(context - length + 1)
        outputs.append(products.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ told)
    return torch.cat(outputs, dim=1).transpose(0, 1)[None]


def _segments(longest: int) -> Segments:
    """A prompt with continuations of unequal lengths, one of which is continued again, and a sequence of its own."""
    sizes = (longest // 2, longest // 8 + 3, longest // 4 + 1, 5, longest // 3)
    return Segments(sizes=sizes, paths=((0,), (0, 1), (0, 2), (0, 2, 3), (4,)))


def _errors(
    name: str, attend: Attention, segments: Segments, kv_heads: int, dtype: torch.dtype, limit: float
) -> list[Figure]:
    """Of the output and of the three gradients, over all segments and in the worst segment."""
    rounded = _inputs(segments, kv_heads, dtype)
    exact = _copies(rounded, torch.float64)  # what rounding the inputs costs is not an error
    wanted, found = reference(*exact, segments), attend(*rounded, segments)
    direction = torch.randn(wanted.shape, dtype=dtype, device=wanted.device, generator=_generator(1))
    wanted.backward(direction.double())  # type: ignore[no-untyped-call]
    found.backward(direction)  # type: ignore[no-untyped-call]
    label = f"{name}, {HEADS} heads on {kv_heads}, {str(dtype).removeprefix('torch.')}"
    parts = zip(
        torch.split(found.double(), list(segments.sizes), dim=1),
        torch.split(wanted, list(segments.sizes), dim=1),
        strict=True,
    )
    output = max(relative(ours, theirs) for ours, theirs in parts)
    gradients = max(relative(_grad(ours).double(), _grad(theirs)) for ours, theirs in zip(rounded, exact, strict=True))
    return [
        at_most(f"{label}: output, worst segment", output, limit, "relative to float64"),
        at_most(f"{label}: gradients of q, k, v", gradients, limit, "relative to float64, the worst of three"),
    ]


def _grad(part: torch.Tensor) -> torch.Tensor:
    assert part.grad is not None, "there was a backward pass"
    return part.grad


def _milliseconds(attend: Attention, segments: Segments) -> float:
    """Median of 10, in bfloat16, after 3 that are not timed."""
    inputs = _inputs(segments, 4, torch.bfloat16)

    def both() -> None:
        attend(*inputs, segments).sum().backward()  # type: ignore[no-untyped-call]

    for _ in range(3):
        both()
    return statistics.median(seconds(both) for _ in range(10)) * 1000


def _inputs(segments: Segments, kv_heads: int, dtype: torch.dtype) -> Inputs:
    """Query, key and value."""
    tokens, generator = sum(segments.sizes), _generator(0)

    def draw(heads: int) -> torch.Tensor:
        drawn = torch.randn(1, heads, tokens, HEAD_DIM, dtype=dtype, device=device(), generator=generator)
        return drawn.requires_grad_()

    return draw(HEADS), draw(kv_heads), draw(kv_heads)


def _copies(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    query, key, value = (part.detach().to(dtype).requires_grad_() for part in inputs)
    return query, key, value


def _generator(seed: int) -> torch.Generator:
    return torch.Generator(device()).manual_seed(seed)


def _by_groups(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments) -> torch.Tensor:
    return packed_rows._by_groups(query, key, value, Layer(), segments)


def _variable(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments) -> torch.Tensor:
    found = packed_rows._variable_length_kernel()
    assert found is not None, "asked before"
    return packed_rows._variable_length(found, query, key, value, Layer(), segments)
