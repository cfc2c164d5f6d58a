"""How much faster iterations follow each other when rollouts continue during updates."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.async_training.run import simulated_settings, train_simulated
from benchmarks.async_training.simulation import SimulatedEngine, SimulatedLearner
from benchmarks.figures import Figure, at_least, at_most, exactly, note

TURN_S = 0.08
STALENESS = (0, 1, 2, 4)


def speed(iterations: int) -> list[Figure]:
    """Iterations a minute of runs that differ in `max_staleness` alone, in one process, one after the other.

    An update takes as long as the rollouts of an iteration take on average in a run without overlap, which is measured
    first.
    """
    update_s = _rollout_seconds(iterations)
    per_minute: dict[int, float] = {}
    figures = [note("seconds of an iteration's rollouts, and of an update", update_s)]
    for staleness in STALENESS:
        records = _run(staleness, update_s, iterations)
        steady = records[2:]  # the first ones fill the pipeline
        seconds = sum(record["timing"]["iteration_s"] for record in steady)
        per_minute[staleness] = 60 * len(steady) / seconds
        waits = {name: _share(steady, name, seconds) for name in ("learner_waits_s", "rollouts_wait_s")}
        oldest = max(record["staleness_max"] for record in records)
        how = f"learner waits {waits['learner_waits_s']:.0%}, rollouts wait {waits['rollouts_wait_s']:.0%} of the time"
        figures.append(note(f"iterations a minute, max_staleness {staleness}", per_minute[staleness], how))
        figures.append(at_most(f"oldest trained token in versions, max_staleness {staleness}", oldest, staleness))
        dropped = sum(record["over_age"] for record in records)
        figures.append(exactly(f"groups dropped for age, max_staleness {staleness}", dropped, 0))
    ratio = per_minute[1] / per_minute[0]
    figures.append(at_least("max_staleness 1 over 0, iterations a minute", ratio, 1.8, "at most 2", timed=True))
    return figures


def _rollout_seconds(iterations: int) -> float:
    records = _run(0, 0.0, iterations)
    return statistics.fmean(record["timing"]["rollout_s"] for record in records)


def _run(staleness: int, update_s: float, iterations: int) -> list[dict[str, Any]]:
    settings = simulated_settings(iterations=iterations, max_staleness=staleness, checkpoint_every=iterations)
    with tempfile.TemporaryDirectory(prefix="finqa-benchmark-") as folder:
        engine, learner = SimulatedEngine(TURN_S), SimulatedLearner(update_s)
        return asyncio.run(train_simulated(settings, Path(folder) / "run", engine, learner))


def _share(records: list[dict[str, Any]], name: str, seconds: float) -> float:
    return float(sum(record["timing"][name] for record in records)) / seconds
