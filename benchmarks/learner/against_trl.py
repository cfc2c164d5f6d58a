"""Our update against the one of TRL's GRPOTrainer: the same prompts, completions, rewards, weights and threads."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, at_least, at_most, note
from benchmarks.learner.jobs import LEARNING_RATE, Clock, Job, Measured, Preparation, measure, prepare, run_json
from benchmarks.learner.shapes import Shape, episodes, turns_of
from finqa_cli.types import Sample

SCRIPT = Path(__file__).with_name("trl_update.py")
ENVIRONMENT = Path(__file__).parents[2] / ".venv-trl"
"""As `make test-trl` makes it."""
SHAPE = Shape(prompt=64, sampled=64, group=8)
ROWS = 16
"""Completions of TRL's micro-batch: two groups."""
FASTER, SAME_NORM = 1.2, 1e-5
OURS = "ours, a group a micro-batch, activations kept"
ALIKE = "ours, TRL's micro-batches and checkpointing"
TRL = "TRL"


def trl_python(given: Path | None) -> Path | None:
    """The interpreter that has TRL: as given, as `FINQA_TRL_PYTHON` says, or the make target's; None without one."""
    named = given or os.environ.get("FINQA_TRL_PYTHON") or ENVIRONMENT / "bin" / "python"
    path = Path(named)
    return path if path.is_file() else None


def against_trl(
    folder: Path, python: Path, *, prompts: int, repeats: int, updates: int, threads: int, shape: Shape = SHAPE
) -> list[Figure]:
    """Three forms of the same update in turns, `repeats` processes each of so many updates after one to warm up."""
    count = prompts * shape.group
    prepare(Preparation(folder=folder, shape=shape, scored=count), threads=threads)
    batch = folder / "batch.json"
    batch.write_text(json.dumps(trl_batch(episodes(shape, count), shape.group)), encoding="utf-8")
    forms: Mapping[str, Callable[[], Measured]] = {
        OURS: lambda: _ours(folder, shape, count, updates, threads, rows=shape.group, checkpointing=False),
        ALIKE: lambda: _ours(folder, shape, count, updates, threads, rows=ROWS, checkpointing=True),
        TRL: lambda: _trl(python, folder, batch, updates, threads),
    }
    found: dict[str, list[Measured]] = {name: [] for name in forms}
    for _ in range(repeats):
        for name, run in forms.items():
            found[name].append(run())
    return [*judged(found), *(figure for name, runs in found.items() for figure in _facts(name, runs))]


def trl_batch(samples: Sequence[Sample], group: int) -> dict[str, Any]:
    """What the script reads; rewards are the advantages, whose mean in a group is 0."""
    turns = [turn for sample in samples for turn in turns_of(sample)]
    return {
        "prompts": [prompt for prompt, _ in turns[::group]],
        "completions": [completion for _, completion in turns],
        "rewards": [float(sample.advantages[-1]) for sample in samples],
    }


def judged(found: Mapping[str, Sequence[Measured]]) -> list[Figure]:
    """Speed and memory of both of our forms over TRL's; the gradients' norms."""
    theirs = found[TRL]
    norms = [abs(found[name][0].grad_norm / theirs[0].grad_norm - 1) for name in (OURS, ALIKE)]
    figures = [at_most("relative difference of the gradient's norm to TRL's", max(norms), SAME_NORM)]
    clocks: tuple[Clock, ...] = ("wall", "CPU")
    for name in (OURS, ALIKE):
        for clock in clocks:
            speed = _median(theirs, clock) / _median(found[name], clock)
            figures.append(
                at_least(f"{name}: times TRL's speed, {clock} seconds", speed, FASTER, "medians", timed=True)
            )
        memory = max(run.grown_mib for run in found[name]) / min(run.grown_mib for run in theirs)
        figures.append(at_most(f"{name}: share of TRL's memory", memory, 1.0, "peak over start", timed=True))
    return figures


def _facts(name: str, runs: Sequence[Measured]) -> list[Figure]:
    each = ", ".join(f"{second:.2f}" for run in runs for second in run.seconds)
    return [
        note(f"{name}: CPU seconds", _median(runs, "CPU"), f"wall of each: {each}"),
        note(f"{name}: memory over start, MiB", max(run.grown_mib for run in runs)),
    ]


def _median(runs: Sequence[Measured], clock: Clock) -> float:
    return statistics.median(second for run in runs for second in run.times(clock))


def _ours(
    folder: Path, shape: Shape, count: int, updates: int, threads: int, *, rows: int, checkpointing: bool
) -> Measured:
    length = shape.prompt + shape.sampled
    job = Job(
        start=folder,
        shape=shape,
        episodes=count,
        repeats=updates,
        warm_up=count,
        token_budget=rows * length,
        rows=rows,
        checkpointing=checkpointing,
    )
    return measure(job, threads=threads)


def _trl(python: Path, folder: Path, batch: Path, updates: int, threads: int) -> Measured:
    model, adapter = str(folder / "model"), str(folder / "adapter")
    command = [str(python), str(SCRIPT), model, str(batch), "--adapter", adapter, "--learning-rate", str(LEARNING_RATE)]
    command += ["--rows", str(ROWS), "--repeats", str(updates), "--threads", str(threads)]
    found = run_json(command, threads=threads)
    kept = ("seconds", "cpu_seconds", "peak_rss_mib", "rss_before_mib", "tokens", "loss")
    return Measured(**{name: found[name] for name in kept}, grad_norm=found["grad_norm"][0])
