"""What an update of the learner costs: every figure with its limit, pass or fail.

    python -m benchmarks.learner [--only PART] [--quick] [--threads N] [--trl-python PATH]

`turns`: whole episodes against the published form, one sequence a turn. `trl`: against TRL's GRPOTrainer in an
environment of its own, which `make test-trl` makes; without one the part is skipped. `budgets`: peak memory over token
budgets and numbers of episodes. `vocabulary`: a head of 150 thousand tokens. `windows`: packed rows against padded ones
of a model with sliding windows. All on this machine's CPU in float32, every measurement in its own process. Prints a
markdown table and, as the last line, the same as JSON; the exit status is 1 when a figure fails. `--quick` is for a
look: too small for its figures to be judged, save the gradients.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, machine, report, without_times
from benchmarks.learner.against_trl import against_trl, trl_python
from benchmarks.learner.against_turns import against_turns
from benchmarks.learner.budgets import budgets
from benchmarks.learner.jobs import ProcessFailed
from benchmarks.learner.vocabulary import vocabulary
from benchmarks.learner.windows import windows

PARTS = ("turns", "trl", "budgets", "vocabulary", "windows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured."""

    episodes: int
    pairs: int
    pair_episodes: int
    prompts: int
    processes: int
    updates: int
    budgets: tuple[int, ...]
    counts: tuple[int, ...]
    head_episodes: int
    head_sampled: int


FULL = Scale(
    episodes=96,
    pairs=2,
    pair_episodes=24,
    prompts=16,
    processes=2,
    updates=3,
    budgets=(2048, 4096, 8192),
    counts=(64, 256, 1024),
    head_episodes=16,
    head_sampled=512,
)
QUICK = Scale(
    episodes=12,
    pairs=1,
    pair_episodes=6,
    prompts=2,
    processes=1,
    updates=1,
    budgets=(1024, 4096),
    counts=(64, 128),
    head_episodes=8,
    head_sampled=256,
)


def measure(parts: Collection[str], scale: Scale, python: Path | None, threads: int) -> dict[str, list[Figure]]:
    """The figures of these parts."""
    figures: dict[str, list[Figure]] = {}
    with tempfile.TemporaryDirectory(prefix="finqa-benchmark-") as scratch:
        for part in (part for part in PARTS if part in parts):
            if part == "trl" and python is None:
                _say("trl skipped: no interpreter that has it; `make test-trl` makes one, or see --trl-python")
                continue
            _say(part)
            figures[part] = _part(part, Path(scratch) / part, scale, python, threads)
    return figures


def _part(part: str, folder: Path, scale: Scale, python: Path | None, threads: int) -> list[Figure]:
    if part == "turns":
        return against_turns(
            folder,
            episodes=scale.episodes,
            repeats=scale.pairs,
            repeat_episodes=scale.pair_episodes,
            threads=threads,
        )
    if part == "trl":
        assert python is not None, "skipped without it"
        return against_trl(
            folder, python, prompts=scale.prompts, repeats=scale.processes, updates=scale.updates, threads=threads
        )
    if part == "windows":
        return windows(folder, episodes=scale.pair_episodes, repeats=scale.pairs, threads=threads)
    if part == "budgets":
        return budgets(folder, budgets=scale.budgets, episodes=scale.counts, threads=threads)
    return vocabulary(folder, episodes=scale.head_episodes, sampled=scale.head_sampled, threads=threads)


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main() -> int:
    """Reads the flags and runs; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="just this part; may be given several times")
    parser.add_argument("--quick", action="store_true", help="a few episodes")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="of PyTorch, in every form")
    parser.add_argument("--trl-python", type=Path, help="interpreter that has TRL")
    arguments = parser.parse_args()
    if arguments.threads < 1:
        parser.error("--threads must be at least 1")
    if arguments.trl_python is not None and not arguments.trl_python.is_file():
        parser.error(f"there is no interpreter {arguments.trl_python}")
    scale = QUICK if arguments.quick else FULL
    try:
        figures = measure(arguments.only or PARTS, scale, trl_python(arguments.trl_python), arguments.threads)
    except ProcessFailed as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.quick:
        figures = {name: without_times(part) for name, part in figures.items()}
    return report(figures, {**machine(), "threads": arguments.threads, "quick": arguments.quick})


if __name__ == "__main__":
    sys.exit(main())
