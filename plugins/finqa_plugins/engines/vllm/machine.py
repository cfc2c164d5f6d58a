"""What this machine has, found out without torch: the engine's own process needs none."""

from __future__ import annotations

import os
from pathlib import Path

_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""NVIDIA's driver, AMD's, and either below Windows."""


def visible_devices() -> tuple[str, ...] | None:
    """The devices that CUDA_VISIBLE_DEVICES leaves to this process; None when it is not set."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else tuple(one.strip() for one in value.split(",") if one.strip())


def has_gpu() -> bool:
    """Whether a server started here would compute on a GPU."""
    return visible_devices() != () and any(Path(device).exists() for device in _DEVICES)
