"""What runs in its own process; see `jobs`. The last line of its output is the result as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.optim.optimizer import register_optimizer_step_pre_hook

from benchmarks.learner import models
from benchmarks.learner.jobs import Job, Measured, ModelSize, Preparation
from benchmarks.learner.memory import LargestTensor, resident_mib
from benchmarks.learner.models import LOSS, make_learner, sampled_episodes
from benchmarks.learner.published import PerTurnUpdate, turn_sequences
from benchmarks.learner.shapes import Shape
from finqa_cli.algorithms.packing import pack
from finqa_cli.types import Batch, Sample

Update = Callable[[], tuple[float, float]]
"""One update; its loss, and the norm of its gradient before the clip."""


def measure(job: Job) -> Measured:
    """Runs the updates of a job here."""
    samples = sampled_episodes(job.start, job.shape, job.episodes)
    with LargestTensor() if job.watch else nullcontext() as largest:
        ready = per_episode if job.form == "per episode" else per_turn
        update, tokens, before = ready(job, samples)
        if job.gradient is not None:
            store_gradient(job.gradient)
        seconds, cpu_seconds, found = [], [], []
        for _ in range(job.repeats):
            began, cpu_began = time.perf_counter(), time.process_time()
            found.append(update())
            seconds.append(time.perf_counter() - began)
            cpu_seconds.append(time.process_time() - cpu_began)
    loss, norm = found[0]
    return Measured(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        peak_rss_mib=resident_mib("VmHWM"),
        rss_before_mib=before,
        tokens=tokens,
        loss=loss,
        grad_norm=norm,
        largest=largest.elements if largest is not None else 0,
    )


def per_episode(job: Job, samples: Sequence[Sample]) -> tuple[Update, int, float]:
    """Our learner: the update, its tokens, and the memory when all was ready."""
    learner = make_learner(job.start, checkpointing=job.checkpointing, packing=job.packing)
    learner.load(job.start / "checkpoint")
    padded = not learner.packs()

    def batch(count: int) -> Batch:
        return pack(samples[:count], token_budget=job.token_budget, max_rows=job.rows, padded=padded)

    whole = batch(job.episodes)
    before = resident_mib()
    if job.warm_up:
        learner.update(batch(job.warm_up), LOSS)
        learner.load(job.start / "checkpoint")
    if job.watch:
        learner.logprobs(samples)

    def update() -> tuple[float, float]:
        report = learner.update(whole, LOSS)
        return report.loss, report.grad_norm

    return update, sum(len(sample.token_ids) for sample in samples), before


def per_turn(job: Job, samples: Sequence[Sample]) -> tuple[Update, int, float]:
    """The published form, likewise."""
    form = PerTurnUpdate(job.start, checkpointing=job.checkpointing)
    before = resident_mib()
    if job.warm_up:
        form.accumulate(samples[: job.warm_up], job.rows)

    def update() -> tuple[float, float]:
        return form.accumulate(samples, job.rows), form.step()

    return update, sum(len(turn.ids) for turn in turn_sequences(samples)), before


def store_gradient(file: Path) -> None:
    """Writes the gradients of the next step that any optimizer takes, in the order of its parameters."""

    def write(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        handle.remove()
        parameters = [part for group in optimizer.param_groups for part in group["params"]]
        save_file({f"{place:04}": part.grad.contiguous() for place, part in enumerate(parameters)}, file)

    handle = register_optimizer_step_pre_hook(write)


def job_of(found: dict[str, Any]) -> Job:
    """Reads a job as `jobs.child` writes it."""
    paths = {name: Path(found[name]) if found[name] else None for name in ("start", "gradient")}
    return Job(**{**found, **paths, "shape": Shape(**found["shape"])})


def preparation_of(found: dict[str, Any]) -> Preparation:
    """Likewise a preparation."""
    return Preparation(
        folder=Path(found["folder"]),
        model=ModelSize(**found["model"]),
        shape=Shape(**found["shape"]),
        scored=found["scored"],
    )


def main() -> None:
    """Reads the task and what it is about from the command line."""
    task, description = sys.argv[1], json.loads(sys.argv[2])
    if task == "prepare":
        models.prepare(preparation_of(description))
        print(json.dumps({}))
    else:
        print(json.dumps(asdict(measure(job_of(description)))))


if __name__ == "__main__":
    main()
