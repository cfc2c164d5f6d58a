"""Part `train`: the small forecast policy trained by the command, killed and resumed.

`finqa train --environment forecast` needs no server, no network and no data set. The command runs in processes of its
own; figures are read from the files of its runs.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, at_least, at_most, exactly, note
from benchmarks.gpu.device import device, on_cuda
from benchmarks.gpu.scales import Scale

GAIN = 0.10
"""Of accuracy on held-out companies in 12 iterations; on a CPU it is 0.38."""
AGREEMENT = {"cpu": 1e-4, "cuda": 0.5}
"""Nats a token, the largest of a run, engine against learner: float32 on a CPU, bfloat16 on CUDA."""
_PATIENCE_S = 200.0


def training(scale: Scale, scratch: Path) -> list[Figure]:
    """A run to its end, and another that is killed half-way and resumed."""
    whole, cut = scratch / "whole", scratch / "cut"
    ended, seconds = _run(("train", *_settings(scale), "--run-dir", str(whole)), scratch)
    figures = [exactly("train: exit status", ended.returncode, 0, _last_line(ended.stderr))]
    if ended.returncode == 0:
        figures += _learned(read_metrics(whole), scale, seconds)
    half = scale.iterations // 2
    if not _killed_after(half, ("train", *_settings(scale), "--run-dir", str(cut)), cut):
        return [*figures, exactly("train: was killed half-way", 0, 1, "it ended before")]
    before = _trained(read_metrics(cut))
    ended, _ = _run(("train", "--resume", str(cut)), scratch)
    figures.append(exactly("resume after kill -9: exit status", ended.returncode, 0, _last_line(ended.stderr)))
    wanted = list(range(1, scale.iterations + 1))
    found = _trained(read_metrics(cut))
    detail = f"killed when {len(before)} of {scale.iterations} iterations were recorded"
    figures.append(exactly("resume after kill -9: every iteration is recorded once", found == wanted, 1, detail))
    return figures


def _settings(scale: Scale) -> tuple[str, ...]:
    kind = device().type
    return (
        *("--environment", "forecast", "--model", "embedded-forecast", "--engine", "transformers"),
        *("--iterations", str(scale.iterations)),
        *("--set", f"engine.options.device={kind}", "--set", f"learner.options.device={kind}"),
        *(() if scale.judged else ("--limit", "8")),
    )


def _learned(metrics: Sequence[Mapping[str, Any]], scale: Scale, seconds: float) -> list[Figure]:
    updates = [line for line in metrics if line["kind"] == "train" and line["updates"]]
    accuracy = [line["accuracy"] for line in metrics if line["kind"] == "eval"]
    broken = sum(not (math.isfinite(line["loss"]) and math.isfinite(line["grad_norm"])) for line in updates)
    apart = max((line["logprob_difference_max"] for line in updates), default=math.inf)
    name, gain = f"train: accuracy gained in {scale.iterations} iterations", accuracy[-1] - accuracy[0]
    detail = f"from {accuracy[0]:.3f}; reward {updates[0]['reward_mean']:.2f} to {updates[-1]['reward_mean']:.2f}"
    limit = AGREEMENT[device().type]
    return [
        exactly("train: iterations with an update", len(updates), scale.iterations),
        exactly("train: updates whose loss or gradient is not finite", broken, 0),
        at_most("train: engine against learner, largest of all tokens (nats)", apart, limit, device().type),
        at_least(name, gain, GAIN, detail) if scale.judged else note(name, gain, detail),
        note("train: seconds", seconds, "with start and evaluations" + (" on CUDA" if on_cuda() else "")),
    ]


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Whole lines of a run's metrics; a torn last one is left out."""
    file = run / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _trained(metrics: Sequence[Mapping[str, Any]]) -> list[int]:
    return [line["iteration"] for line in metrics if line["kind"] == "train"]


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "finqa_cli", *arguments, "--json"]


def _run(arguments: Sequence[str], folder: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    """The command in a folder without settings, and the seconds it took."""
    began = time.monotonic()
    ended = subprocess.run(
        _command(arguments), cwd=folder, capture_output=True, text=True, check=False, timeout=_PATIENCE_S
    )
    return ended, time.monotonic() - began


def _killed_after(iteration: int, arguments: Sequence[str], run: Path) -> bool:
    """Starts the command and kills it with SIGKILL once it recorded this iteration; False when it ended by itself."""
    process = subprocess.Popen(
        _command(arguments), cwd=run.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + _PATIENCE_S
        while process.poll() is None and iteration not in _trained(read_metrics(run)) and time.monotonic() < until:
            time.sleep(0.02)
        there = process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return there


def _last_line(text: str) -> str:
    return next(iter(reversed(text.strip().splitlines())), "")[:160].replace("|", "/")
