"""The device that is measured: its clock, its memory, and what it is."""

from __future__ import annotations

import gc
import importlib.metadata
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch

GIB = 1 << 30


def device() -> torch.device:
    """The first CUDA device, or the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def on_cuda() -> bool:
    """Whether it is a CUDA device."""
    return device().type == "cuda"


def seconds(work: Callable[[], Any]) -> float:
    """Wall time of work on the device, from an idle device to an idle one."""
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def wait() -> None:
    """Returns when the device has nothing left to do; a CPU never has."""
    if on_cuda():
        torch.cuda.synchronize()


def begin_peak() -> None:
    """Peaks count from here."""
    if on_cuda():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float | None:
    """GiB of tensors at the peak, without the CUDA context; None on a CPU, where PyTorch does not count."""
    return torch.cuda.max_memory_allocated() / GIB if on_cuda() else None


def peak_reserved_gib() -> float:
    """GiB at the peak that the allocator held, tensors and what lay between them. CUDA only."""
    return torch.cuda.max_memory_reserved() / GIB


def release() -> None:
    """Gives memory of tensors that nothing refers to any more back to the device."""
    gc.collect()
    if on_cuda():
        torch.cuda.empty_cache()


def facts() -> dict[str, Any]:
    """Device, driver and versions."""
    versions = {name: _version(name) for name in ("transformers", "peft", "safetensors")}
    found = {"torch": torch.__version__, "torch_cuda": torch.version.cuda, **versions}
    if not on_cuda():
        return {"device": "cpu", **found}
    properties = torch.cuda.get_device_properties(device())
    memory = round(properties.total_memory / GIB, 1)
    return {"device": properties.name, "device_gib": memory, "driver": _driver(), **found}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _driver() -> str:
    """Its version as nvidia-smi gives it; empty where that is not there."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return asked.stdout.partition("\n")[0].strip() if asked.returncode == 0 else ""
