"""The data type in which a model computes on CPU cores, the same for engine and learner.

With AVX512-BF16 or AMX, matrix products in bfloat16 are faster than in float32 and weights take half the memory
(benchmarks/cpu_precision.py). Small policies gain nothing, and keep float32.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from finqa_cli.placement.machine import SMALL_MODEL

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
