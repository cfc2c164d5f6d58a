"""What a process holds, and the largest tensor that it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


def resident_mib(which: str = "VmRSS") -> float:
    """Memory of this process in RAM; its most so far as `VmHWM`, which begins again with each program, as the maximum
    of getrusage does not.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith(f"{which}:"))
    return float(line.split()[1]) / 1024


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is on, notes the largest tensor that any operation of this thread returns, backward passes included.

    Attributes:
        elements: Of the largest.
        shape: Its shape.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0
        self.shape: tuple[int, ...] = ()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation and looks at what it gives."""
        made = func(*args, **(kwargs or {}))
        for part in tree_iter(made):
            if isinstance(part, torch.Tensor) and part.numel() > self.elements:
                self.elements, self.shape = part.numel(), tuple(part.shape)
        return made
