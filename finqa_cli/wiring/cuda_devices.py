"""The CUDA devices of this machine, without importing torch in this process."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from finqa_cli.settings.backend_choice import cuda_visible

_TORCH = (
    "import torch; "
    "[print(torch.cuda.get_device_name(i), *torch.cuda.mem_get_info(i), sep=',') "
    "for i in range(torch.cuda.device_count())]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDevice:
    """A CUDA device that this process sees; memory in bytes."""

    name: str
    free: float
    total: float


@cache
def cuda_devices() -> tuple[CudaDevice, ...]:
    """The devices that CUDA_VISIBLE_DEVICES leaves, in its order: by nvidia-smi, else by PyTorch in a process of its
    own; none when neither answers. Asked once in a process: a run's own memory must not change its plan.
    """
    if not cuda_visible():
        return ()
    return _by_driver() or _by_torch()


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


def _by_driver() -> tuple[CudaDevice, ...]:
    query = ["nvidia-smi", "--query-gpu=uuid,name,memory.free,memory.total", "--format=csv,noheader,nounits"]
    devices: dict[str, CudaDevice] = {}
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout
        for line in text.splitlines():
            uuid, _, rest = line.partition(",")
            name, free, total = rest.rsplit(",", 2)
            size = CudaDevice(name=name.strip(), free=float(free) * 2**20, total=float(total) * 2**20)
            devices[uuid.strip()] = size
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()
    listed = list(devices.values())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(listed)
    chosen: list[CudaDevice] = []
    for part in (part.strip() for part in visible.split(",")):
        if part.isdigit() and int(part) < len(listed):
            chosen.append(listed[int(part)])
        elif matching := [device for uuid, device in devices.items() if part and uuid.startswith(part)]:
            chosen.append(matching[0])
        else:
            break  # as CUDA does: what follows an invalid number is not seen
    return tuple(chosen)


def _by_torch() -> tuple[CudaDevice, ...]:
    try:
        text = subprocess.run([sys.executable, "-c", _TORCH], capture_output=True, text=True, timeout=60, check=True)
        rows = [line.rsplit(",", 2) for line in text.stdout.splitlines()]
        return tuple(CudaDevice(name=name, free=float(free), total=float(total)) for name, free, total in rows)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()
