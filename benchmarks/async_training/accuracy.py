"""Does the embedded policy learn as much from tokens of older weights?"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, at_most, exactly, note
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.statistics import crossed_difference


def accuracy(seeds: int, iterations: int, out: Path) -> list[Figure]:
    """Held-out greedy accuracy of `finqa train --max-staleness 1` less that of 0, question by question.

    Both play the same number of episodes: every iteration fills the sandboxes once, independently of the rewards. The
    difference of a question is the mean over the seeds; its interval is over companies and runs (`crossed_difference`).
    """
    before: list[float] = []
    scores: dict[int, dict[str, list[float]]] = {0: {}, 1: {}}
    companies: dict[str, str] = {}
    figures: list[Figure] = []
    for seed in range(seeds):
        runs = {staleness: _train(seed, staleness, iterations, out) for staleness in (0, 1)}
        verdicts = {staleness: _verdicts(run, iterations) for staleness, run in runs.items()}
        before.append(statistics.fmean(reward for reward, _ in _verdicts(runs[0], 0).values()))
        for staleness, run in runs.items():
            for question, (reward, company) in verdicts[staleness].items():
                scores[staleness].setdefault(question, []).append(reward)
                companies[question] = company
            mean = statistics.fmean(reward for reward, _ in verdicts[staleness].values())
            figures.append(note(f"accuracy after, seed {seed}, max_staleness {staleness}", mean, _about(run)))
        episodes = [sum(record["episodes"] for record in _iterations(run)) for run in runs.values()]
        figures.append(exactly(f"episodes more than without overlap, seed {seed}", episodes[1] - episodes[0], 0))
    names = sorted(companies)
    stale, fresh = (
        [[scores[staleness][name][seed] for name in names] for seed in range(seeds)] for staleness in (1, 0)
    )
    paired = crossed_difference(stale, fresh, [companies[name] for name in names])
    how = f"95 % interval {paired.low:+.3f} to {paired.high:+.3f}; accuracy before {statistics.fmean(before):.3f}"
    half = (paired.high - paired.low) / 2
    return [
        *figures,
        note("accuracy with max_staleness 1 less that with 0", paired.difference, how),
        at_most("by how much it is lower beyond the interval", max(0.0, -paired.high), 0.0),
        at_most("half of the interval", half, 0.1, "else the comparison would say nothing"),
    ]


def _train(seed: int, staleness: int, iterations: int, out: Path) -> Path:
    run = out / f"staleness{staleness}_seed{seed}"
    given = {"seed": seed, "max-staleness": staleness, "iterations": iterations, "target-groups-per-iter": 0}
    flags = [f"--{name}={value}" for name, value in {**given, "max-rollout-rounds": 1, "run-dir": run}.items()]
    subprocess.run([sys.executable, "-m", "finqa_cli", "train", "--quiet", *flags], check=True)
    return run


def _verdicts(run: Path, iteration: int) -> dict[str, tuple[float, str]]:
    return {
        record["task"]["id"]: (float(record["reward"]), record["task"]["cluster"])
        for record in read_jsonl(run / "trajectories.jsonl")
        if record["phase"] == "eval" and record["iteration"] == iteration
    }


def _iterations(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_jsonl(run / "metrics.jsonl") if record["kind"] == "train"]


def _about(run: Path) -> str:
    records = _iterations(run)
    tokens = sum(record.get("loss_tokens", 0) for record in records)
    stale = sum(record.get("staleness_tokens_1", 0) for record in records)
    seconds = sum(record["timing"]["iteration_s"] for record in records)
    truncated = [record["importance_truncated"] for record in records if "importance_truncated" in record]
    cut = f", {statistics.fmean(truncated):.2%} of weights truncated" if truncated else ""
    return f"{stale / tokens:.0%} of trained tokens one version old{cut}; {seconds:.0f} s of training"
