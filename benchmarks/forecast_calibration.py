"""Does RLCR make a policy say how sure it should be, does the plain reward not, and does the control not?

    python -m benchmarks.forecast_calibration [--seeds 2] [--out FOLDER]

The questions have noise that their prompts tell (`track_record`): the best answer is right in 100, 67 or 33 % of cases,
so no constant confidence is calibrated everywhere. A tiny policy is made from nothing by demonstrations that answer
what the prompt points to, of which 60 % always state confidence 1. Then `finqa train` from the same weights
and with the same seed: with the plain reward, with RLCR (arXiv 2507.16806), and with RLCR's rewards shuffled. A small
KL penalty is in all three, for the plain reward does not pay for the form of a confidence and would lose it. Figures
are of held-out questions at temperature 1, before and after. Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, at_least, at_most, machine, note, report

OVERCONFIDENT = 0.6
ITERATIONS = 20
POLICY = Path(__file__).parents[1] / "configs/models/forecast-tiny.toml"
QUESTIONS: Mapping[str, Any] = {
    "environment.options.types": '["news_sentiment"]',
    "environment.options.noise": "[0.0,0.5,1.0]",
    "environment.options.track_record": "true",
    "environment.options.confidence": "true",
    "environment.options.companies": 400,
    "environment.options.uncertainty": "off",
    "learner.options.threads": 1,
}
RUNS = {"plain": ("score",), "rlcr": ("rlcr",), "control": ("rlcr", "--shuffle-rewards")}
HEAD = (
    "| seed | run | accuracy before | after | Brier before | after | ECE before | after "
    "| stated at 33 / 67 / 100 % after | seconds |\n|" + " --- |" * 10
)


def finqa(*arguments: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """One command in its own process; the document that `--json` prints."""
    assigned = [text for name, value in {**QUESTIONS, **settings}.items() for text in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "finqa_cli", *arguments, "--environment", "forecast", "--json", *assigned]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def teach(folder: Path, seed: int) -> Path:
    """The policy that training begins from: right where it can be, and mostly too sure."""
    shown = folder / "demonstrations"
    finqa(
        *("eval", "scripted", "--split", "train", "--limit", "0", "--run-dir", str(shown)),
        settings={"environment.options.hindsight": "false", "environment.options.overconfident": OVERCONFIDENT},
    )
    finqa(
        *("sft", str(shown), "--init", str(POLICY), "--run-dir", str(folder / "sft"), "--seed", str(seed)),
        *("--epochs", "6", "--lr", "3e-3", "--batch-tokens", "2048", "--validation-samples", "0"),
        settings={"learner.options.betas": "[0.9,0.98]", "sft.warmup_share": 0.05},
    )
    return folder / "sft/checkpoints/final"


def train(model: Path, folder: Path, seed: int, reward: str, *flags: str) -> dict[str, Any]:
    """GRPO, evaluated before and after on the split `test`; advantages are not divided, for the score is proper."""
    return finqa(
        *("train", "--model", str(model), "--run-dir", str(folder), "--seed", str(seed), "--optimizer", "grpo"),
        *("--iterations", str(ITERATIONS), "--group-size", "8", "--target-groups-per-iter", "32", "--limit", "0"),
        *("--max-gen-tokens", "20", "--lora-rank", "0", "--learning-rate", "5e-4", "--sandboxes", "256", *flags),
        settings={
            "environment.options.reward": reward,
            "optimizer.options.normalize_std": "none",
            "optimizer.options.kl": "loss",
            "optimizer.options.kl_coef": 0.02,
            "train.max_rollout_rounds": 1,
            "train.checkpoint_every": ITERATIONS,
            "data.eval_split": "test",
            "eval.temperature": 1.0,
            "engine.options.threads": 1,
        },
    )


def changes(result: Mapping[str, Any]) -> dict[str, float]:
    """What training added to accuracy, Brier score and ECE."""
    return {name: _figure(result["after"], name) - _figure(result["before"], name) for name in _NAMES}


def judged(results: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    """The bars of one seed; `results` by the name of the run."""
    rlcr, plain, control = (changes(results[name]) for name in ("rlcr", "plain", "control"))
    others = min(_figure(results[name]["after"], "brier") for name in ("plain", "control"))
    return [
        at_most("RLCR: Brier score", rlcr["brier"], -0.04, "after less before"),
        at_most("RLCR: ECE", rlcr["ece"], -0.08),
        at_least("RLCR: accuracy", rlcr["accuracy"], -0.05, "what is said about it costs no answers"),
        at_least("plain: Brier score", plain["brier"], -0.02),
        at_least("plain: ECE", plain["ece"], -0.04),
        at_least("plain or control above RLCR: Brier score", others - _figure(results["rlcr"]["after"], "brier"), 0.03),
        note("control: Brier score", control["brier"]),
    ]


def row(seed: int, name: str, result: Mapping[str, Any], seconds: float) -> str:
    """One run as a row of the table."""
    cells = [f"{_figure(result[when], figure):.3f}" for figure in _NAMES for when in ("before", "after")]
    stated = result["after"]["measures"]["confidence_by_uncertainty"]
    cells.append(" / ".join(f"{stated[bucket]:.2f}" for bucket in sorted(stated, reverse=True)))
    return f"| {seed} | {name} | {' | '.join(cells)} | {seconds:.0f} |"


def main() -> int:
    """Teaches and trains for each seed, prints the table and the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark_forecast_calibration"))
    arguments = parser.parse_args()
    print(HEAD, flush=True)
    parts: dict[str, list[Figure]] = {}
    for seed in range(arguments.seeds):
        folder = arguments.out / str(seed)
        began = time.monotonic()
        model = teach(folder, seed)
        parts[f"seed {seed}"] = [note("teaching, seconds", time.monotonic() - began)]
        results = {}
        for name, (reward, *flags) in RUNS.items():
            began = time.monotonic()
            results[name] = train(model, folder / name, seed, reward, *flags)
            print(row(seed, name, results[name], time.monotonic() - began), flush=True)
        parts[f"seed {seed}"] += judged(results)
    print()
    return report(parts, machine())


_NAMES = ("accuracy", "brier", "ece")


def _figure(moment: Mapping[str, Any], name: str) -> float:
    return float(moment["accuracy"] if name == "accuracy" else moment["measures"][name])


if __name__ == "__main__":
    sys.exit(main())
