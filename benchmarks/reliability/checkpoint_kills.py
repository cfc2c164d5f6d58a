"""Kill -9 while a checkpoint is written: is there always one that can be loaded?

    python -m benchmarks.reliability.checkpoint_kills INSTANTS SEED FOLDER

A program of its own with one thread, because it forks: each child writes the next checkpoint and is killed at a
moment that the seed draws, within the time that such a write takes. Prints JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from finqa_cli.errors import FinqaError
from finqa_cli.runs import checkpoints

FILES, BYTES = 6, 100_000
AFTER = 1.5
"""Times the duration of a write, so that some children are killed behind it."""


def write(run: Path, iteration: int) -> None:
    """Writes one checkpoint, of about as many files as a LoRA run has."""
    with checkpoints.writing(run, iteration, {"cursor": iteration}) as folder:
        (folder / "learner").mkdir()
        for number in range(FILES):
            (folder / "learner" / f"{number}.bin").write_bytes(os.urandom(BYTES))


def kill_a_write(run: Path, iteration: int, moment_s: float) -> None:
    """Writes a checkpoint in a child and kills it `moment_s` after its start."""
    child = os.fork()
    if child == 0:
        try:
            write(run, iteration)
        finally:
            os._exit(0)
    time.sleep(moment_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def main(instants: int, seed: int, folder: Path) -> dict[str, int]:
    """Kills so many writes.

    Returns:
        Numbers of instants: `loadable` afterwards, `lost` more than the write in progress, killed before the new one
        had its name (`before`) and after (`after`), and `leftovers` of files that no later write removed.
    """
    rng, counts = random.Random(f"checkpoint {seed}"), Counter[str]()
    began = time.monotonic()
    for iteration in range(5):
        write(folder, iteration)
    longest_s = AFTER * (time.monotonic() - began) / 5
    newest = 4
    for _ in range(instants):
        kill_a_write(folder, newest + 1, rng.uniform(0.0, longest_s))
        try:
            found = checkpoints.latest(folder)
        except FinqaError:
            found = None
        counts["loadable"] += found is not None
        reached = -1 if found is None else found.iteration
        counts["lost"] += reached < newest
        counts["after" if reached > newest else "before"] += 1
        newest = max(newest, reached)
        checkpoints.prune(folder, 2)
    write(folder, newest + 1)
    names = [path.name for path in (folder / "checkpoints").iterdir()]
    counts["leftovers"] = sum(not name.startswith("step_") and name != checkpoints.LATEST for name in names)
    return dict(counts)


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
