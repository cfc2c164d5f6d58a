"""Does the main job learn, and does the control not?

    python -m benchmarks.learning [--seeds 3] [--out FOLDER]

For each seed: `finqa train` on the embedded default, and the same with shuffled rewards. Prints one row per run with
held-out greedy accuracy before and after, the share of queries that quote their years, and the seconds of training.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROW = "| {run} | {seed} | {before:.3f} | {after:.3f} | {quoted_before:.3f} | {quoted_after:.3f} | {seconds:.0f} |"
HEAD = (
    "| run | seed | accuracy before | after | quoted years before | after | training s |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


def train(seed: int, *, shuffled: bool, folder: Path) -> dict[str, Any]:
    """One run of the command in its own process; the document that `--json` prints."""
    command = [sys.executable, "-m", "finqa_cli", "train", "--seed", str(seed), "--run-dir", str(folder), "--json"]
    if shuffled:
        command.append("--shuffle-rewards")
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def training_seconds(run: Path) -> float:
    """Rollouts, updates and syncs of all iterations; start-up and evaluation left out."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return float(sum(record["timing"]["iteration_s"] for record in records if record["kind"] == "train"))


def main() -> None:
    """Runs all seeds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark_learning"))
    arguments = parser.parse_args()
    print(f"{platform.platform()}, Python {platform.python_version()}\n\n{HEAD}", flush=True)
    for seed in range(arguments.seeds):
        for shuffled in (False, True):
            name = "control, rewards shuffled" if shuffled else "grpo"
            folder = arguments.out / f"{'control' if shuffled else 'grpo'}_{seed}"
            result = train(seed, shuffled=shuffled, folder=folder)
            before, after = result["before"], result["after"]
            row = ROW.format(
                run=name,
                seed=seed,
                before=before["accuracy"],
                after=after["accuracy"],
                quoted_before=before["quoted_years"],
                quoted_after=after["quoted_years"],
                seconds=training_seconds(folder),
            )
            print(row, flush=True)


if __name__ == "__main__":
    main()
