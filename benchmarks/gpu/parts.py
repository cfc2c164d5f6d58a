"""The parts by name, and the process of one of them; see `__main__`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.gpu.scales import SCALES, Scale

Part = Callable[[Scale, Path], list[Figure]]

PARTS: Mapping[str, str] = {
    "kernel": "benchmarks.gpu.kernel:kernel",
    "learner": "benchmarks.gpu.learning_speed:learning_speed",
    "plan": "benchmarks.gpu.plan:plan",
    "oom": "benchmarks.gpu.oom:oom",
    "mismatch": "benchmarks.gpu.mismatch:mismatch",
    "engine": "benchmarks.gpu.engine_speed:engine_speed",
    "train": "benchmarks.gpu.training:training",
    "profile": "benchmarks.gpu.profiling:profiling",
}
OPTIONAL = ("profile",)
"""Not run unless they are named."""
PER_MODEL = ("learner",)
"""A process for each model: writing and loading one of 14B takes a good part of the time that a part has."""


def load(name: str) -> Part:
    """The function of a part; its module imports PyTorch."""
    module, _, function = PARTS[name].partition(":")
    part: Part = getattr(import_module(module), function)
    return part


def main() -> None:
    """Runs the part that the command line names; the last line of output has its figures and the facts as JSON."""
    name, scale, scratch = sys.argv[1:]
    from benchmarks.gpu.device import facts
    from finqa_cli import logs

    logs.configure({"FINQA_LOG_LEVEL": "error"})
    figures = load(name)(SCALES[scale], Path(scratch))
    print(json.dumps({"figures": [asdict(figure) for figure in figures], "facts": facts()}))


if __name__ == "__main__":
    main()
