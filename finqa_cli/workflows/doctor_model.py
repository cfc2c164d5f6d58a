"""The policy against the devices of this machine: its size, what it needs, and whether a GPU can hold it."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.errors import FinqaError
from finqa_cli.extend import registry
from finqa_cli.settings import Settings, is_embedded
from finqa_cli.settings.auto import cuda_visible
from finqa_cli.types import Check
from finqa_cli.workflows.policies import resolve

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A CUDA device as the driver's own tool lists it; memory in bytes."""

    name: str
    free: float
    total: float


def gpu(settings: Settings) -> list[Check]:
    """Whether the engine finds what it needs: a device, a PyTorch that can use it, and memory."""
    return [gpu_check(settings, cuda=cuda_visible(), devices=cuda_devices(), torch_cuda=torch_cuda())]


def gpu_check(settings: Settings, *, cuda: bool, devices: Sequence[Device], torch_cuda: str | None) -> Check:
    """The judgement of `gpu` on these facts."""
    name = settings.model.name
    if modelless(settings) or is_embedded(name):
        found = _names(devices) if cuda else "none"
        user = f"engine {settings.engine.name}" if modelless(settings) else "the embedded policy"
        return Check(name="gpu", status="ok", detail=f"{found}; {user} needs none")
    if not cuda:
        detail = f"no CUDA device; {name} runs slowly on the CPU"
        return Check(name="gpu", status="warn", detail=detail, remedy="finqa train --model embedded")
    if torch_cuda == "":
        detail = f"{_names(devices)}, but the installed torch is built without CUDA"
        return Check(name="gpu", status="fail", detail=detail, remedy="pip install --force-reinstall torch")
    share = settings.model.tensor_parallel_size
    if devices and share > len(devices):
        detail = f"{_names(devices)}, but the model is to be spread over {share}"
        return Check(name="gpu", status="fail", detail=detail, remedy=f"--tensor-parallel-size {len(devices)}")
    size = model_size(settings)
    need = size * copies_bytes(settings, cuda=True) / share if size else 0.0
    free = max((device.free for device in devices), default=math.inf)
    detail = _names(devices) + (f", about {need / GB:.0f} GB of {free / GB:.0f} GB free needed" if need else "")
    if need > free:
        remedy = "choose a smaller --model, or more GPUs and --tensor-parallel-size"
        return Check(name="gpu", status="warn", detail=detail, remedy=remedy)
    return Check(name="gpu", status="ok", detail=detail)


def copies_bytes(settings: Settings, *, cuda: bool) -> float:
    """Bytes per parameter that engine and learner hold together: float32 on CPU, bfloat16 on CUDA.

    Without an adapter the learner has gradients and both averages of AdamW as well, in float32.
    """
    width = 2 if cuda else 4
    return 2 * width + (0 if settings.lora.rank else 16)


def model_size(settings: Settings) -> float | None:
    """Parameters of the policy; None when nothing tells, or when there is no such policy."""
    try:
        return parameters(resolve(settings.model.name).model)
    except FinqaError:
        return None


def parameters(model: str) -> float | None:
    """How many a model has, by the files of a folder or by the `14B` in a hub id; None when neither tells."""
    folder = Path(model)
    if folder.is_dir():
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        except (OSError, ValueError):
            return None
        return stored / (4 if "float32" in str(config.get("dtype", config.get("torch_dtype"))) else 2) or None
    found = re.search(r"(?:^|[-_])(\d+(?:\.\d+)?)([bm])(?=$|[-_])", model.rpartition("/")[2], re.IGNORECASE)
    return float(found[1]) * (1e9 if found[2] in "bB" else 1e6) if found else None


def count(number: float) -> str:
    """`14.0 billion`, `0.9 million`."""
    return f"{number / 1e9:.1f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"


def cuda_devices() -> tuple[Device, ...]:
    """The devices that this process sees, by nvidia-smi; none when it cannot be asked."""
    query = ["nvidia-smi", "--query-gpu=name,memory.free,memory.total", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=3, check=True).stdout
        rows = [line.rsplit(",", 2) for line in text.splitlines() if line.strip()]
        devices = [Device(name=row[0], free=float(row[1]) * 2**20, total=float(row[2]) * 2**20) for row in rows]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    chosen = [int(part) for part in visible.split(",") if part.strip().isdigit()]
    return tuple(devices[number] for number in chosen if number < len(devices)) if chosen else tuple(devices)


def torch_cuda() -> str | None:
    """The CUDA version that the installed PyTorch is built for, "" for none; None when it is not installed.

    Read from a file of the package: importing it would take longer than everything else here.
    """
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return None
    try:
        text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r"^cuda\b[^=]*= *(?:'([^']*)'|\"([^\"]*)\"|None)", text, re.MULTILINE)
    return (version[1] or version[2] or "") if version else None


def modelless(settings: Settings) -> bool:
    """True when no model runs on this machine: the engine answers from a mind of its own, or asks a server."""
    return any(
        part.modelless or part.remote for part in registry().components("engine") if part.name == settings.engine.name
    )


def _names(devices: Sequence[Device]) -> str:
    if not devices:
        return "a CUDA device"
    return devices[0].name if len(devices) == 1 else f"{len(devices)} devices, {devices[0].name}"
