"""Refuses GPUs on which the installed PyTorch or the data types of a run do not work, before anything starts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from types import MappingProxyType

from finqa_cli.errors import ConfigError
from finqa_cli.placement.placement_types import Device
from finqa_cli.processes import ask_program

_NEEDS = MappingProxyType({11: (450, 3.5), 12: (525, 5.0), 13: (580, 7.5)})
"""Major version of CUDA -> oldest driver branch on Linux and smallest compute capability (CUDA Toolkit release notes,
"Minimum Required Driver Version for CUDA Minor Version Compatibility" and "Deprecated Architectures")."""

BFLOAT16 = 8.0
"""Smallest compute capability with bfloat16: Ampere. T4 has 7.5, V100 has 7.0."""

_ON_CPU = "export CUDA_VISIBLE_DEVICES= to compute on the CPU"
_TORCH_S = 60.0


def check_devices(devices: Sequence[Device], torch_cuda: str | None, wide: Sequence[str]) -> None:
    """Check driver, compute capability and data types of the devices of a run. What is not known is not checked.

    Args:
        devices: The devices.
        torch_cuda: CUDA version for which PyTorch is built, such as `13.0`; None: unknown.
        wide: Settings that make the components which compute in bfloat16 compute in another type, `NAME=VALUE` each.

    Raises:
        ConfigError: One of them does not work.
    """
    driver, smallest = _NEEDS.get(_major(torch_cuda or ""), (0, 0.0))
    for device in devices:
        if 0 < _major(device.driver) < driver and torch_problem():
            raise ConfigError(
                f"NVIDIA's driver {device.driver} is too old for the installed torch, which is built for CUDA "
                f"{torch_cuda} and needs driver {driver} or newer.",
                remedy=f"{_ON_CPU}, or update NVIDIA's driver to {driver} or newer",
            )
        if device.capability is None:
            continue
        name = f"{device.name} (compute capability {device.capability:g})"
        if device.capability < smallest:
            raise ConfigError(
                f"{name} is not supported by the installed torch, which is built for CUDA {torch_cuda} and needs "
                f"{smallest:g} or more.",
                remedy=f"{_ON_CPU}, or use a newer GPU",
            )
        if wide and device.capability < BFLOAT16:
            raise ConfigError(
                f"{name} does not compute in bfloat16, which needs {BFLOAT16:g} or more, and the run would.",
                remedy=" ".join(f"--set {setting}" for setting in wide),
            )


@cache
def torch_problem() -> str:
    """Return why PyTorch cannot use CUDA, as it says itself in a process of its own; empty if it can.

    It takes seconds, so that it is asked only in doubt and by `finqa doctor`.
    """
    try:
        ask_program([sys.executable, "-c", "import torch; torch.cuda.init()"], timeout_s=_TORCH_S)
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr or "").strip().splitlines()
        return re.sub(r"^\w+: ", "", lines[-1])[:200] if lines else f"exit status {error.returncode}"
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


def _major(version: str) -> int:
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else 0
