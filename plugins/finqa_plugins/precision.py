"""The data type in which a model computes, and how an adapter is added in 16 bits; the same for engine and learner.

With AVX512-BF16 or AMX, matrix products in bfloat16 are faster than in float32 and weights take half the memory
(benchmarks/cpu_precision.py). Small policies gain nothing, and keep float32.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from finqa_cli.placement.host_resources import SMALL_MODEL

_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")
_CPUINFO = Path("/proc/cpuinfo")


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
