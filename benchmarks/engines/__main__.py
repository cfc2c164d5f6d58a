"""The token engines side by side: every figure with its limit, pass or fail.

    OMP_NUM_THREADS=1 python -m benchmarks.engines [--only PART] [--quick] [--vllm-python PATH]

Both engines serve the embedded policy in fp32 on this machine's CPU. vLLM is the CPU build in an environment of its
own (`make test-vllm` installs one), named by `--vllm-python` or FINQA_VLLM_PYTHON; without it the parts of vLLM are
skipped. `compile` asks whether torch.compile would pay. Prints a markdown table and, as the last line, the same as
JSON; the exit status is 1 when a figure fails. `--quick` is for tests: too small for its times to be judged.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engines.compiled import compiled
from benchmarks.engines.contestants import started, vllm_options, vllm_python
from benchmarks.engines.fuzz import fuzz
from benchmarks.engines.mismatch import mismatch
from benchmarks.engines.speed import transformers_speed, vllm_speed
from benchmarks.engines.swaps import swap
from benchmarks.engines.versions import Versions
from benchmarks.figures import Figure, machine, report, without_times
from finqa_cli import logs
from finqa_cli.contracts import TokenEngine

PARTS = ("transformers", "vllm", "fuzz", "compile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured."""

    episodes: int
    turns: int
    repeats: int
    requests: int
    swaps: int
    fuzz: int
    steps: int


FULL = Scale(episodes=64, turns=5, repeats=3, requests=1000, swaps=20, fuzz=10_000, steps=150)
QUICK = Scale(episodes=8, turns=2, repeats=1, requests=40, swaps=4, fuzz=320, steps=4)


async def of_transformers(scale: Scale, folder: Path) -> list[Figure]:
    """Its speed, in and out of lockstep, against its naive form; agreement with the learner; swaps."""
    figures = await transformers_speed(episodes=scale.episodes, turns=scale.turns, repeats=scale.repeats)
    async with started("transformers", {"threads": 1, "lockstep": False}) as engine:
        return [*figures, *await _versions("transformers", engine, scale, folder, judged=True)]


async def of_vllm(scale: Scale, folder: Path, python: Path) -> list[Figure]:
    """The same of one vLLM server."""
    async with started("vllm", vllm_options(python)) as engine:
        figures = await vllm_speed(engine, episodes=scale.episodes, turns=scale.turns, repeats=scale.repeats)
        return [*figures, *await _versions("vllm", engine, scale, folder, judged=False)]


async def _versions(name: str, engine: TokenEngine, scale: Scale, folder: Path, *, judged: bool) -> list[Figure]:
    versions = Versions(folder / name)
    figures = await mismatch(name, engine, versions, episodes=scale.episodes // 2, judged=judged)
    return [*figures, *await swap(name, engine, versions, requests=scale.requests, swaps=scale.swaps)]


def measure(parts: Collection[str], scale: Scale, python: Path | None) -> dict[str, list[Figure]]:
    """The figures of these parts."""
    figures: dict[str, list[Figure]] = {}
    with tempfile.TemporaryDirectory(prefix="finqa-benchmark-") as folder:
        for part in (part for part in PARTS if part in parts):
            _say(part)
            if part == "transformers":
                figures[part] = asyncio.run(of_transformers(scale, Path(folder)))
            elif part == "vllm" and python is None:
                _say("vllm skipped: no interpreter that has it; see --vllm-python")
            elif part == "vllm" and python is not None:
                figures[part] = asyncio.run(of_vllm(scale, Path(folder), python))
            elif part == "fuzz":
                figures[part] = fuzz(episodes=scale.fuzz)
            else:
                figures[part] = compiled(steps=scale.steps)
    return figures


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main() -> int:
    """Reads the flags and runs; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="just this part; may be given several times")
    parser.add_argument("--quick", action="store_true", help="a few episodes and swaps")
    parser.add_argument("--vllm-python", type=Path, help="interpreter that has vLLM")
    arguments = parser.parse_args()
    if arguments.vllm_python is not None and not arguments.vllm_python.is_file():
        parser.error(f"there is no interpreter {arguments.vllm_python}")
    logs.configure({"FINQA_LOG_LEVEL": "error"})
    python = vllm_python(arguments.vllm_python)
    figures = measure(arguments.only or PARTS, QUICK if arguments.quick else FULL, python)
    if arguments.quick:
        figures = {name: without_times(part) for name, part in figures.items()}
    return report(figures, {**machine(), "quick": arguments.quick})


if __name__ == "__main__":
    sys.exit(main())
