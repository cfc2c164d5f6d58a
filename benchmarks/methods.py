"""Does every training method improve the tiny policy on companies that it never saw?

    python -m benchmarks.methods [--methods sft,grpo,rloo,ppo,dpo] [--seeds 3] [--out FOLDER] [--companies 600]

Each run is the product's own commands, one process each. `grpo`, `rloo` and `ppo` train the embedded policy, whose
habits are careless, by `finqa train`; `dpo` trains it on pairs of its own attempts (`finqa sample`, `prefs`, `dpo`);
`sft` begins from nothing (weights at random, a tokenizer made again) and imitates a careful expert on companies that
the embedded data set does not have. All are measured greedily on the same held-out questions.

Prints a row for each run, with the 95 % interval of its accuracy (clustered by company), and one for each method: the
mean change over the seeds with Student's interval. Exits 1 when an interval of a method's change reaches 0.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import finqa_cli

_TINY = Path(finqa_cli.__file__).parent / "configs" / "models" / "tiny.toml"

_EXPERT_SEED = 5001
"""Of the first seed's demonstrations; far from the seeds of the embedded data and of the embedded policy's teachers."""

_STUDENT_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""By number of seeds: the 97.5 % quantile of Student's t with one degree of freedom less."""


@dataclass(frozen=True, slots=True)
class Change:
    """Greedy accuracy on held-out companies around training, the second with the ends of its interval."""

    before: float
    after: float
    low: float
    high: float
    seconds: float


def train(method: str, seed: int, folder: Path, companies: int) -> Change:
    """One run of `finqa train`, which evaluates before and after."""
    del companies
    document = _finqa("train", "--optimizer", method, "--seed", seed, "--run-dir", folder)
    return _change(document["before"], document["after"], document["seconds"])


def dpo(method: str, seed: int, folder: Path, companies: int) -> Change:
    """Sampled candidates, right against wrong ones, and a policy that prefers the right."""
    del method, companies
    seeded = ("--seed", seed)
    sampling = ("--limit", 140, "-k", 6, "--temperature", 1, "--top-p", 1)
    sampled = _finqa("sample", "embedded", *sampling, *seeded, "--run-dir", folder / "candidates")
    _finqa("prefs", folder / "candidates", "--rule", "right-wrong", *seeded, "--run-dir", folder / "pairs")
    method_options = ("--epochs", 3, "--pairs-per-step", 12)
    trained = _finqa("dpo", folder / "pairs", *method_options, *seeded, "--run-dir", folder / "dpo")
    before = _finqa("eval", "embedded", "--run-dir", folder / "before")
    after = _finqa("eval", folder / "dpo", "--run-dir", folder / "after")
    return _change(before, after, sampled["seconds"] + trained["seconds"])


def sft(method: str, seed: int, folder: Path, companies: int) -> Change:
    """Careful demonstrations on generated companies, then imitation from random weights."""
    del method
    data, name = folder / "data", f"methods-sft-{folder.resolve().parent.name}-{seed}"
    made = ("--companies", companies, "--questions", 8, "--seed", _EXPERT_SEED + seed, "--splits", "1,0,0")
    _finqa("data", "generate", *made, "--out", data)
    _finqa("snapshot", "build", "--snapshot-name", name, "--data", data)
    played = ("--snapshot", name, "--split", "train", "--sandboxes", 16)
    _finqa("eval", "scripted", *played, "--run-dir", folder / "demonstrations")
    pace = ("--epochs", 3, "--lr", 2e-3, "--batch-tokens", 4096, "--seed", seed)
    details = ("--set", "learner.options.betas=[0.9,0.98]", "--set", "sft.warmup_share=0.05")
    trained = _finqa("sft", folder / "demonstrations", "--init", _TINY, *pace, *details, "--run-dir", folder / "sft")
    before = _finqa("eval", folder / "sft" / "init", "--snapshot", "openenv-finqa", "--run-dir", folder / "before")
    after = _finqa("eval", folder / "sft", "--snapshot", "openenv-finqa", "--run-dir", folder / "after")
    return _change(before, after, trained["seconds"])


METHODS: dict[str, Callable[[str, int, Path, int], Change]] = {
    "sft": sft,
    "grpo": train,
    "rloo": train,
    "ppo": train,
    "dpo": dpo,
}


def main() -> int:
    """Runs everything and prints the table; 1 when a method's change may be none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, choices=sorted(_STUDENT_975), default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark_methods"))
    parser.add_argument("--companies", type=int, default=600, help="that sft's demonstrations are about")
    arguments = parser.parse_args()
    methods = arguments.methods.split(",")
    if unknown := sorted(set(methods) - set(METHODS)):
        parser.error(f"no method {', '.join(unknown)}; there are {', '.join(METHODS)}")
    print(f"{platform.platform()}, Python {platform.python_version()}\n", flush=True)
    print("| method | seed | accuracy before | after | training s |\n| --- | --- | --- | --- | --- |", flush=True)
    lowest = math.inf
    for method in methods:
        changes = []
        for seed in range(arguments.seeds):
            change = METHODS[method](method, seed, arguments.out / f"{method}_{seed}", arguments.companies)
            after = f"{change.after:.3f} [{change.low:.3f}, {change.high:.3f}]"
            print(f"| {method} | {seed} | {change.before:.3f} | {after} | {change.seconds:.0f} |", flush=True)
            changes.append(change.after - change.before)
        mean, reach = statistics.fmean(changes), _reach(changes)
        print(f"| {method} | mean change | | {mean:+.3f} [{mean - reach:+.3f}, {mean + reach:+.3f}] | |", flush=True)
        lowest = min(lowest, mean - reach)
    return 0 if lowest > 0 else 1


def _finqa(*arguments: object) -> dict[str, Any]:
    """The document that a command of the product prints."""
    command = [sys.executable, "-m", "finqa_cli", *map(str, arguments), "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _change(before: dict[str, Any], after: dict[str, Any], seconds: float) -> Change:
    low, high = after["accuracy_interval"]
    return Change(before=before["accuracy"], after=after["accuracy"], low=low, high=high, seconds=seconds)


def _reach(values: list[float]) -> float:
    """Half the width of Student's 95 % interval of the mean."""
    return _STUDENT_975[len(values)] * statistics.stdev(values) / math.sqrt(len(values))


if __name__ == "__main__":
    sys.exit(main())
