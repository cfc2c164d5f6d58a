"""Measurements, each in its own process: the memory of one is not that of another, and none meets a warm cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.learner.shapes import Shape

Form = Literal["per episode", "per turn"]
Packing = Literal["auto", "off"]
Clock = Literal["wall", "CPU"]
LEARNING_RATE = 8e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Sizes of a Qwen3, or of a Gemma 3 where `window` is above 0."""

    vocabulary: int = 2000
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    key_value_heads: int = 2
    feed_forward: int = 768
    window: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One measurement of updates that all begin from the same adapter.

    Attributes:
        start: Folder that `Preparation` filled.
        form: One sequence an episode in our learner, or one a turn as published.
        shape: Of the episodes.
        episodes: How many an update is of.
        repeats: Updates that are timed.
        warm_up: Episodes of an update before them.
        token_budget: Of our micro-batches.
        rows: Sequences of a micro-batch at most.
        checkpointing: Activations are computed again in the backward pass.
        packing: Of our learner: `off` pads its sequences, and computes what they begin with alike once each.
        gradient: File for the gradient of the first timed update.
        watch: Also look for the largest tensor, in an update and in the scoring of the same episodes. Costs time.
    """

    start: Path
    form: Form = "per episode"
    shape: Shape
    episodes: int
    repeats: int = 1
    warm_up: int = 0
    token_budget: int
    rows: int
    checkpointing: bool = True
    packing: Packing = "auto"
    gradient: Path | None = None
    watch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A model folder, an adapter after one step (so that both of its factors have gradients), and log-probabilities.

    Attributes:
        folder: Where they go.
        model: Its sizes.
        shape: Of the episodes.
        scored: Episodes that get the log-probabilities of that adapter, as if it had sampled them.
    """

    folder: Path
    model: ModelSize = field(default_factory=ModelSize)
    shape: Shape
    scored: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one process found.

    Attributes:
        seconds: Wall time of each update.
        cpu_seconds: CPU time of each, of all threads.
        peak_rss_mib: The most that the process ever held.
        rss_before_mib: What it held when all was ready to train.
        tokens: That went through the network in one forward pass of the update, without padding.
        loss: Of the first update.
        grad_norm: Of the first update, before the clip.
        largest: Elements of the largest tensor that an operation made; 0 if it was not measured.
    """

    seconds: list[float]
    cpu_seconds: list[float]
    peak_rss_mib: float
    rss_before_mib: float
    tokens: int
    loss: float
    grad_norm: float
    largest: int = 0

    @property
    def grown_mib(self) -> float:
        """Memory that training took at its peak."""
        return self.peak_rss_mib - self.rss_before_mib

    def times(self, clock: Clock) -> list[float]:
        """Of each update, in seconds."""
        return self.seconds if clock == "wall" else self.cpu_seconds


class ProcessFailed(Exception):
    """A measurement ended without a result; the message is the end of what it said."""


def prepare(preparation: Preparation, *, threads: int) -> None:
    """Fills its folder."""
    _run(child("prepare", preparation), environment(threads))


def measure(job: Job, *, threads: int, exact_memory: bool = False) -> Measured:
    """Runs it.

    Args:
        job: What to measure.
        threads: Of PyTorch.
        exact_memory: The allocator gives each large block back at once, so that what the process holds is what lives;
            for memory alone, since it costs time.
    """
    extra = {"MALLOC_MMAP_THRESHOLD_": str(2**17)} if exact_memory else {}
    found = _run(child("measure", job), environment(threads) | extra)
    return Measured(**found)


def run_json(command: list[str], *, threads: int) -> dict[str, Any]:
    """The last line that a command prints, read as JSON.

    Raises:
        ProcessFailed: It ended with an error.
    """
    return _run(command, environment(threads))


def child(task: str, description: Preparation | Job) -> list[str]:
    """The command of one of our own processes."""
    return [sys.executable, "-m", "benchmarks.learner.child", task, json.dumps(asdict(description), default=str)]


def environment(threads: int) -> dict[str, str]:
    """That of this process, with so many threads for every library of the child."""
    return os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def _run(command: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ProcessFailed(f"{command[:4]} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found
