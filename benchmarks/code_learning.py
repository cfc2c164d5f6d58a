"""Does a policy that writes code learn from tests, and does the control not?

    python -m benchmarks.code_learning [--seed 0] [--out FOLDER]

Made from nothing, in minutes on one core. Demonstrations are simple functions of which most forget to return their
result (`careless`); a tiny policy is taught by them and has the same habit. Then `finqa train --environment code` by
GRPO on the tests alone, and the same with shuffled rewards. Prints accuracy at temperature 1, which is what is trained,
on functions that were in none of it, before and after. Exit code 1 when GRPO gains less than 40 points, or the control
more than noise.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.controlled import NAMES, finqa, verdict

WANTED_GAIN = 0.40
CARELESS = 0.7
TASKS = 1400
ITERATIONS = 12
HELD_OUT = 100
POLICY = Path(__file__).parent / "code_policy.toml"
FAMILY = {"environment.options.family": "functions", "environment.options.tasks": TASKS, "learner.options.threads": 1}
HEAD = (
    "| run | accuracy before | after | tests passed before | after | seconds |\n| --- | --- | --- | --- | --- | --- |"
)


def play(*arguments: str, **assigned: Any) -> dict[str, Any]:
    """One command on the functions."""
    values = {**FAMILY, **{name.replace("__", "."): value for name, value in assigned.items()}}
    settings = [text for name, value in values.items() for text in ("--set", f"{name}={value}")]
    return finqa(*arguments, "--environment", "code", *settings)


def teach(folder: Path, seed: int) -> Path:
    """The policy that GRPO begins from: taught by demonstrations that are mostly careless."""
    shown = folder / "demonstrations"
    play(
        *("eval", "scripted", "--split", "train", "--limit", "0", "--sandboxes", "4", "--run-dir", str(shown)),
        environment__options__careless=CARELESS,
    )
    play(
        *("sft", str(shown), "--init", str(POLICY), "--run-dir", str(folder / "sft"), "--seed", str(seed)),
        *("--epochs", "10", "--lr", "3e-3", "--batch-tokens", "1024", "--validation-samples", "0"),
        learner__options__betas="[0.9,0.98]",
        sft__warmup_share=0.05,
    )
    return folder / "sft/checkpoints/final"


def train(model: Path, folder: Path, seed: int, *, shuffled: bool) -> dict[str, Any]:
    """GRPO on the tests, evaluated before and after on the split `test`."""
    return play(
        *("train", "--model", str(model), "--run-dir", str(folder), "--seed", str(seed), "--sandboxes", "16"),
        *("--iterations", str(ITERATIONS), "--group-size", "8", "--target-groups-per-iter", "8"),
        *("--max-gen-tokens", "64", "--lora-rank", "0", "--learning-rate", "3e-4", "--limit", str(HELD_OUT)),
        *(("--shuffle-rewards",) if shuffled else ()),
        data__eval_split="test",
        eval__temperature=1.0,
        engine__options__threads=1,
    )


def main() -> int:
    """Teaches, trains twice, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark_code_learning"))
    arguments = parser.parse_args()
    began = time.monotonic()
    model = teach(arguments.out, arguments.seed)
    print(f"{platform.platform()}, Python {platform.python_version()}; taught in {time.monotonic() - began:.0f} s\n")
    print(HEAD, flush=True)
    results = {}
    for shuffled in (False, True):
        began = time.monotonic()
        name = NAMES[shuffled]
        result = train(model, arguments.out / name.split(",")[0], arguments.seed, shuffled=shuffled)
        before, after = result["before"], result["after"]
        cells = (*(moment["accuracy"] for moment in (before, after)), *(_passed(moment) for moment in (before, after)))
        row = " | ".join(f"{cell:.3f}" for cell in cells)
        print(f"| {name} | {row} | {time.monotonic() - began:.0f} |", flush=True)
        results[shuffled] = result
    missed = verdict(results, WANTED_GAIN)
    print("\n" + ("; ".join(missed) or "Learned, and the control did not."))
    return 1 if missed else 0


def _passed(moment: Mapping[str, Any]) -> float:
    return float(moment["measures"]["test_pass_rate"])


if __name__ == "__main__":
    sys.exit(main())
