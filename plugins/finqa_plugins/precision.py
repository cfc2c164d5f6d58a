"""The data type of a model and of its logits, and how an adapter is added in 16 bits; one for engine and learner.

With AVX512-BF16 or AMX, matrix products in bfloat16 are faster than in float32 and weights take half the memory
(benchmarks/cpu_precision.py). Small policies gain nothing, and keep float32.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from finqa_cli.placement.host_resources import SMALL_MODEL

_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")
_CPUINFO = Path("/proc/cpuinfo")

_HEAD_PER_BLOCK = 2**20
"""Weights of the head that are copied to float32 at once, where a product of 16-bit numbers has no float32 result.

4 MiB stay in a core's cache: for one row and SmolLM2's head a block of 2^20 took 7 ms, like the product in bfloat16,
and one of 2^24 took 66 ms.
"""


@cache
def has_fast_bfloat16() -> bool:
    """Whether this machine's cores multiply bfloat16 numbers with instructions of their own."""
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    if capabilities is not None:
        found = capabilities()
        return any(bool(found.get(name)) for name in _INSTRUCTIONS)
    try:
        text = _CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return any(name in flags for name in _INSTRUCTIONS)


def auto_dtype(device: torch.device, parameters: int) -> torch.dtype:
    """The type that `auto` means: bfloat16 on CUDA, and on fast cores for a model that is not small.

    Args:
        device: Device of the computation.
        parameters: Number of parameters of the model; 0 if it is not known, which counts as small.
    """
    if device.type == "cuda" or (parameters >= SMALL_MODEL and has_fast_bfloat16()):
        return torch.bfloat16
    return torch.float32


def low_rank_sum(
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    hidden: torch.Tensor,
    up: torch.Tensor,
) -> torch.Tensor:
    """[N, out] states [N, in] @ weight [in, out] + hidden [N, r] @ up [r, out] + bias: a linear layer with LoRA.

    All have one dtype. The product with the weight is accumulated in float32, also in 16 bits, and joins the low-rank
    term before it is rounded. A term that is added to the rounded product instead is lost in every element where it is
    less than half of the last bit: after the first step at 2e-4, SmolLM2-135M had 36 % of the effect that its adapter
    has in float32, and has 99 % this way. A sum that is rounded once keeps it on average. There is one tensor of this
    size.
    """
    whole = (hidden @ up).addmm_(states, weight)
    return whole if bias is None else whole.add_(bias)  # last: beside a bias the term would be rounded away


def wide_logits(head: nn.Linear, states: torch.Tensor) -> torch.Tensor:
    """[..., V] float32 logits of states [..., H], with both inputs rounded to the dtype of the computation.

    bfloat16 rounds a logit near 20 to about 0.06, so that a bfloat16 output of the head causes most of the difference
    between two computations of one policy. Products of two 16-bit numbers are exact in float32, so only the output must
    be wider. MiniMax-M1, arXiv 2506.13585, section 3.2; ScaleRL, arXiv 2510.13786. On CUDA the matrix
    product takes 16-bit inputs and writes float32, at no cost. Elsewhere head and states are copied to float32 for the
    product, a block after the other.
    """
    device = states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    if dtype == torch.float32:
        return nn.Linear.forward(head, states)  # not head(): an engine puts this function in the place of its forward
    rows = states.to(dtype).flatten(0, -2)
    logits: torch.Tensor = _WideProduct.apply(rows, head.weight)  # type: ignore[no-untyped-call]
    wide = logits if head.bias is None else logits + head.bias.float()
    return wide.view(*states.shape[:-1], wide.shape[-1])


class _WideProduct(torch.autograd.Function):
    """states @ weight^T with a float32 result.

    The gradient of the logits is rounded to the dtype of the states, as everywhere below the head.
    """

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(states, weight)
        return _logits(states, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        states, weight = ctx.saved_tensors
        narrow = gradient.to(states.dtype)
        of_states = of_weight = None
        if ctx.needs_input_grad[0]:
            of_states = gradient_of_states(narrow, weight).to(states.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = _product(narrow.t(), states).to(weight.dtype)
        return of_states, of_weight


def _logits(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """States [N, H] @ weight[V, H]^T in float32."""
    if states.device.type == "cuda":
        return _product(states, weight.to(states.dtype).t())
    parts = [_product(states, block.to(states.dtype).t()) for block in _blocks(weight)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def gradient_of_states(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Gradient [N, V] @ weight [V, H] in float32."""
    if gradient.device.type == "cuda":
        return _product(gradient, weight.to(gradient.dtype))
    blocks = _blocks(weight)
    parts = torch.split(gradient, [len(block) for block in blocks], dim=1)
    found = _product(parts[0], blocks[0].to(gradient.dtype))
    for part, block in zip(parts[1:], blocks[1:], strict=True):
        found += _product(part, block.to(gradient.dtype))
    return found


def _blocks(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The head's weight [V, H] in blocks of rows, of which each is copied to float32 alone."""
    return torch.split(weight, max(1, _HEAD_PER_BLOCK // weight.shape[1]))


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The matrix product of two tensors of one 16-bit dtype, in float32."""
    with torch.autocast(left.device.type, enabled=False):
        if left.device.type == "cuda":
            return torch.mm(left, right, out_dtype=torch.float32)
        return torch.mm(left.float(), right.float())
