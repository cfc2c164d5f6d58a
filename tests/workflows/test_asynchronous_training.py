"""The product's trainer between parts that only take time: what overlaps, how old tokens get, what is on disk."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.async_training.run import simulated_settings, train_simulated
from benchmarks.async_training.simulation import SimulatedEngine, SimulatedLearner
from finqa_cli.errors import InterruptedRun
from finqa_cli.record.jsonl import read_jsonl
from finqa_cli.types import Batch, Completion, GenerateRequest, LossSpec, PolicyVersion, UpdateReport
from finqa_cli.workflows.trainer import Progress, Trainer

TURN_S, UPDATE_S = 0.004, 0.05


class WatchedEngine(SimulatedEngine):
    """Remembers when each request came, and which versions were loaded while how many were under way."""

    def __init__(self, *, stale_from: int = 99, sleeps: bool = False) -> None:
        super().__init__(TURN_S)
        self.asked: list[float] = []
        self.underway = 0
        self.loads: list[tuple[int, int]] = []
        self.naps: list[tuple[float, float]] = []
        self.sleeps = sleeps
        self._stale_from = stale_from

    async def generate(self, request: GenerateRequest) -> Completion:
        assert not self.naps or self.naps[-1][1], "asked while it sleeps"
        self.asked.append(time.monotonic())
        self.underway += 1
        try:
            return await super().generate(request)
        finally:
            self.underway -= 1

    async def load(self, policy: PolicyVersion) -> None:
        self.loads.append((policy.number, self.underway))
        if policy.number < self._stale_from:
            await super().load(policy)

    async def sleep(self) -> None:
        self.naps.append((time.monotonic(), 0.0))

    async def wake(self) -> None:
        self.naps[-1] = (self.naps[-1][0], time.monotonic())


def train(run: Path, engine: SimulatedEngine, learner: SimulatedLearner, **train: Any) -> list[dict[str, Any]]:
    return asyncio.run(train_simulated(simulated_settings(**train), run, engine, learner))


def played(run: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(run / "trajectories.jsonl"))


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_no_token_is_trained_on_beyond_the_bound_and_none_is_wasted(staleness: int, tmp_path: Path) -> None:
    engine, learner = WatchedEngine(), SimulatedLearner(UPDATE_S)
    records = train(tmp_path / "run", engine, learner, iterations=8, max_staleness=staleness)
    assert [record["iteration"] for record in records] == list(range(1, 9))
    assert all(record["updates"] == 1 and record["over_age"] == 0 for record in records)
    oldest = [record["staleness_max"] for record in records]
    assert max(oldest) <= staleness and (staleness == 0 or max(oldest) > 0)
    for record in records:
        histogram = {int(name.rsplit("_", 1)[1]): count for name, count in record.items() if "staleness_tokens" in name}
        assert sum(histogram.values()) == record["loss_tokens"] and max(histogram) == record["staleness_max"]
    assert engine.loads[-1][0] == 8
    assert any(underway for _, underway in engine.loads) == bool(staleness), "swapped in flight, or not at all"
    assert len(played(tmp_path / "run")) == sum(record["episodes"] for record in records)


def test_rollouts_go_on_while_the_learner_is_busy_unless_nothing_may_be_stale(tmp_path: Path) -> None:
    during = {}
    for staleness in (0, 1):
        engine, learner = WatchedEngine(), SimulatedLearner(UPDATE_S)
        records = train(tmp_path / str(staleness), engine, learner, iterations=6, max_staleness=staleness)
        during[staleness] = sum(began < at < ended for began, ended in learner.spans[:-1] for at in engine.asked) / len(
            engine.asked
        )
        idle = [record["timing"]["rollouts_wait_s"] for record in records[1:-1]]
        assert all(seconds >= 0.9 * UPDATE_S for seconds in idle) if staleness == 0 else min(idle) < 0.5 * UPDATE_S
    assert during[0] == 0 and during[1] > 0.2


def test_what_is_played_does_not_depend_on_how_far_ahead_it_is_played(tmp_path: Path) -> None:
    seen = []
    for staleness in (0, 2):
        train(tmp_path / str(staleness), SimulatedEngine(TURN_S), SimulatedLearner(0.01), max_staleness=staleness)
        seen.append({record["id"]: record["reward"] for record in played(tmp_path / str(staleness))})
    assert seen[0] == seen[1]


def test_versions_are_recorded_turn_by_turn_and_may_change_within_an_episode(tmp_path: Path) -> None:
    train(tmp_path / "run", WatchedEngine(), SimulatedLearner(UPDATE_S), iterations=6, max_staleness=2)
    versions = [[turn["policy_version"] for turn in record["turns"]] for record in played(tmp_path / "run")]
    assert all(each == sorted(each) for each in versions)
    assert any(len(set(each)) > 1 for each in versions), "no swap met an episode: the test shows nothing"


def test_groups_that_are_too_old_are_dropped_and_counted(tmp_path: Path) -> None:
    """An engine that goes on serving version 2: its tokens are 1, 2, ... versions old from version 3 on."""
    engine, learner = WatchedEngine(stale_from=3), SimulatedLearner(0.01)
    records = train(tmp_path / "run", engine, learner, iterations=8, max_staleness=1)
    fresh = [record for record in records if record["updates"]]
    stale = [record for record in records if not record["updates"]]
    assert len(learner.batches) == len(fresh) and all(record["staleness_max"] <= 1 for record in fresh)
    assert stale and all(record["over_age"] > 0 and "staleness_max" not in record for record in stale)
    assert all(record["informative"] == 0 for record in stale)


def test_an_engine_sleeps_exactly_while_the_learner_works(tmp_path: Path) -> None:
    engine, learner = WatchedEngine(sleeps=True), SimulatedLearner(0.01)
    train(tmp_path / "run", engine, learner, iterations=3, max_staleness=0)
    assert len(engine.naps) == len(learner.spans) == 3
    for (down, up), (began, ended) in zip(engine.naps, learner.spans, strict=True):
        assert down <= began and ended <= up


def test_a_checkpoint_names_what_is_being_played_and_a_resumed_run_plays_it_again(tmp_path: Path) -> None:
    engine, learner = SimulatedEngine(TURN_S), SimulatedLearner(UPDATE_S)
    train(tmp_path / "run", engine, learner, iterations=5, max_staleness=2)
    state = json.loads((tmp_path / "run/checkpoints/step_3/state.json").read_text())
    assert state["unsettled"], "rollouts were ahead of the learner"
    at_the_end = json.loads((tmp_path / "run/checkpoints/step_5/state.json").read_text())
    assert at_the_end["unsettled"] == []
    progress = Progress(
        iteration=3,
        cursor=state["cursor"],
        unsettled=state["unsettled"],
        policy=PolicyVersion(number=3, model="simulated"),
        published=3,
        informative_share=state["informative_share"],
    )
    settings = simulated_settings(iterations=5, max_staleness=2)
    asyncio.run(train_simulated(settings, tmp_path / "resumed", SimulatedEngine(TURN_S), learner, progress=progress))
    ran = [record for record in played(tmp_path / "run") if record["iteration"] <= 3] + played(tmp_path / "resumed")
    asked = Counter(record["task"]["id"] for record in ran)
    assert len(asked) == 5 * 8 and set(asked.values()) == {4}, "no group is lost, and none is played for nothing"


class StoppedLearner(SimulatedLearner):
    """Somebody presses Ctrl-C in its third update."""

    trainer: Trainer

    def update(self, batch: Batch, loss: LossSpec) -> UpdateReport:
        if len(self.spans) == 2:
            self.trainer.stopper.signal = signal.SIGINT
        return super().update(batch, loss)

    def listen(self, trainer: Trainer) -> None:
        self.trainer = trainer


def test_a_stop_lets_what_runs_ahead_finish_too(tmp_path: Path) -> None:
    engine, learner = WatchedEngine(), StoppedLearner(UPDATE_S)
    settings = simulated_settings(iterations=9, max_staleness=2)
    with pytest.raises(InterruptedRun):
        asyncio.run(train_simulated(settings, tmp_path / "run", engine, learner, listen=learner.listen))
    assert engine.underway == 0 and len(played(tmp_path / "run")) > 3 * 32
    assert all(record["status"] == "completed" for record in played(tmp_path / "run"))
