"""The product's trainer with an engine that is probed: when it is, what is recorded, and what a resumed run knows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.async_training.run import simulated_settings, train_simulated
from benchmarks.async_training.simulation import SimulatedEngine, SimulatedLearner
from finqa_cli.errors import EngineError
from finqa_cli.runs import checkpoints
from finqa_cli.runs.checkpoints import Checkpoint
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.types import Completion, GenerateRequest, Sample


class Served(SimulatedEngine):
    """In another process, with rounding of `off` nats; from version `stale_from` on it serves something else."""

    probe_tolerance = "measured"

    def __init__(self, off: float, stale_from: int = 99) -> None:
        super().__init__(0.0)
        self.off, self.stale_from = off, stale_from
        self.probed: list[tuple[int, int]] = []

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        self.probed.append((self.version, self.requests))
        off = 1.0 if self.version >= self.stale_from else self.off
        return {0: Completion(token_ids=(9, 1), logprobs=(-1 - off,) * 2, stop="stop", policy_version=self.version)}


class ScoringLearner(SimulatedLearner):
    def logprobs(self, samples: Sequence[Sample]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(-1.0 if masked else 0.0 for masked in sample.loss_mask) for sample in samples)


def train(run: Path, engine: Served, checkpoint: Checkpoint | None = None, **train: Any) -> list[dict[str, Any]]:
    settings = simulated_settings(iterations=4, checkpoint_every=1, keep_checkpoints=0, **train)
    return asyncio.run(train_simulated(settings, run, engine, ScoringLearner(0.0), checkpoint=checkpoint))


def events(run: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in read_jsonl(run / "events.jsonl") if event["event"] == name]


def test_the_tolerance_is_measured_before_the_first_episode_and_in_every_checkpoint(tmp_path: Path) -> None:
    engine = Served(0.04)
    records = train(tmp_path / "run", engine)
    assert engine.probed[0] == (0, 0) and {version for version, _ in engine.probed} == set(range(5))
    (event,) = events(tmp_path / "run", "probe_tolerance")
    assert event["typical"] == pytest.approx(0.08)
    for step in range(5):
        state = checkpoints.verified(tmp_path / "run" / "checkpoints" / f"step_{step}").state
        assert state["probe_tolerance"]["typical"] == event["typical"]
    for record, weights in zip(records, events(tmp_path / "run", "weights"), strict=True):
        assert record["probe_difference"] == record["probe_largest"] == pytest.approx(0.04)
        assert record["probe_looks"] == 1 and record["sync_bytes"] == weights["sync_bytes"] == 0
        parts = sum(record["timing"][name] for name in ("publish_s", "load_s", "probe_s"))
        assert 0 <= parts <= record["timing"]["sync_s"] + 1e-3


@pytest.mark.parametrize(("off", "passes"), [(0.07, True), (0.09, False)])
def test_a_resumed_run_keeps_the_tolerance_and_probes_what_it_loaded(off: float, passes: bool, tmp_path: Path) -> None:
    train(tmp_path / "run", Served(0.04))
    checkpoints.discard_after(tmp_path / "run", 2)
    checkpoint = checkpoints.latest(tmp_path / "run")
    engine = Served(off)
    if passes:
        assert [record["iteration"] for record in train(tmp_path / "again", engine, checkpoint)] == [3, 4]
        assert engine.probed[0] == (2, 0)
    else:
        with pytest.raises(EngineError, match=r"version 2, .* Rounding explains 0\.08 .*measured on version 0"):
            train(tmp_path / "again", engine, checkpoint)
        assert engine.requests == 0
    assert not events(tmp_path / "again", "probe_tolerance")


@pytest.mark.parametrize("staleness", [0, 1])
def test_an_engine_that_becomes_stale_ends_the_run_with_a_command(staleness: int, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="policy version 3, but twice") as raised:
        train(tmp_path / "run", Served(0.001, stale_from=3), max_staleness=staleness)
    assert raised.value.remedy.startswith(f"finqa train --resume {tmp_path / 'run'}")
    assert [event["look"] for event in events(tmp_path / "run", "probe_differs")] == [1, 2]
    assert len(events(tmp_path / "run", "weights")) == 2
