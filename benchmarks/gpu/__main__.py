"""What learner, engine and the whole loop do on one CUDA device: every figure with its limit, pass or fail.

    python -m benchmarks.gpu [--only PART] [--shapes full|0.6b|4b|14b|tiny] [--out FILE.json] [--scratch FOLDER]

It runs from a checkout and needs Python 3.12, PyTorch 2.11 or newer with CUDA, transformers, PEFT, and what the base
package needs; no installation, network or hub. Models have the shapes of Qwen3-0.6B, 4B and 14B and random weights.

`kernel`: attention over packed rows, forward and backward, against float64. `learner`: tokens a second and peak memory
of updates with LoRA of rank 16 at 16k tokens. `plan`: predicted memory against measured. `oom`: an update that does not
fit. `mismatch`: log-probabilities of engine and learner in bfloat16. `engine`: its speed beside `generate`. `train`:
the small forecast policy, killed and resumed. `profile`, only when it is named: the longest kernels of an update.

Each part is its own process, `learner` one for each model, and is ended after 4 minutes. Prints a markdown table
and, as the last line, the same as JSON; the exit status is 1 when a figure fails. On a machine without CUDA, `--shapes
tiny` runs the same code on the CPU, without limits that depend on the machine; other shapes are refused with exit
status 2.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, as_json, exactly, machine, note, report
from benchmarks.gpu.parts import OPTIONAL, PARTS, PER_MODEL
from benchmarks.gpu.scales import SCALES, TINY

ROOT = Path(__file__).parents[2]
PART_LIMIT_S = 240.0
NO_CUDA = 2


def measure(parts: Collection[str], scale: str, scratch: Path | None) -> tuple[dict[str, list[Figure]], dict[str, Any]]:
    """The figures of these parts, and the facts about the device."""
    figures: dict[str, list[Figure]] = {}
    facts: dict[str, Any] = {}
    for part in (part for part in PARTS if part in parts):
        print(f"{time.strftime('%H:%M:%S')} {part}", file=sys.stderr, flush=True)
        scales = [shape.name for shape in SCALES[scale].models] if part in PER_MODEL else [scale]
        figures[part] = []
        for name in scales:
            with tempfile.TemporaryDirectory(prefix="finqa-benchmark-", dir=scratch) as folder:
                members, found = run_part([sys.executable, "-m", "benchmarks.gpu.parts", part, name, folder])
            figures[part] += members
            facts |= found
    return figures, facts


def run_part(command: list[str], *, limit_s: float = PART_LIMIT_S) -> tuple[list[Figure], dict[str, Any]]:
    """Runs a part with everything that it starts. A part that fails or takes too long is a figure that fails."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
        reason = (errors.strip().splitlines() or ["no message"])[-1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        reason = f"ended after {limit_s:.0f} s"
    took = time.monotonic() - began
    if process.returncode:
        print(errors[-4000:], file=sys.stderr, flush=True)
        return [exactly("completes", 0, 1, f"{took:.0f} s; {reason[:200].replace('|', '/')}")], {}
    found = json.loads(output.splitlines()[-1])
    return [*(Figure(**figure) for figure in found["figures"]), note("seconds", took)], found["facts"]


def environment() -> dict[str, str]:
    """That of this process, in which this checkout is found from any folder, and the hub is not asked."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", ""))).rstrip(os.pathsep)
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def has_cuda() -> bool:
    """Whether PyTorch finds a CUDA device, asked in another process: this one is to hold no memory of it."""
    code = "import torch; raise SystemExit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def main() -> int:
    """Reads the flags and runs; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="just this part; may be given several times")
    parser.add_argument("--shapes", choices=SCALES, default="full", help="of the models; tiny: what a CPU can do")
    parser.add_argument("--out", type=Path, help="JSON file for all figures and the facts about the device")
    parser.add_argument(
        "--scratch", type=Path, help="folder with 30 GB of room for models, deleted afterwards; /dev/shm is fastest"
    )
    arguments = parser.parse_args()
    if arguments.scratch is not None and not arguments.scratch.is_dir():
        parser.error(f"there is no folder {arguments.scratch}")
    if arguments.shapes != TINY.name and not has_cuda():
        print("PyTorch finds no CUDA device. On the CPU: python -m benchmarks.gpu --shapes tiny", file=sys.stderr)
        return NO_CUDA
    parts = arguments.only or [part for part in PARTS if part not in OPTIONAL]
    figures, facts = measure(parts, arguments.shapes, arguments.scratch and arguments.scratch.resolve())
    facts = {**machine(), **facts, "shapes": arguments.shapes}
    if arguments.out is not None:
        arguments.out.write_text(as_json(figures, facts) + "\n", encoding="utf-8")
    return report(figures, facts)


if __name__ == "__main__":
    sys.exit(main())
