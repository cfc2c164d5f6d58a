"""The product's trainer between parts that only take time: what overlaps, how old tokens get, what is on disk."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fixtures.watched_engine import TURN_S, UPDATE_S, WatchedEngine

from benchmarks.async_training.run import simulated_settings, train_simulated
from benchmarks.async_training.simulation import SimulatedEngine, SimulatedLearner
from finqa_cli.runs import checkpoints
from finqa_cli.runs.checkpoints import Checkpoint
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.types import Batch, Loss, Trajectory, UpdateReport

pytestmark = pytest.mark.thorough


def train(run: Path, engine: SimulatedEngine, learner: SimulatedLearner, **train: Any) -> list[dict[str, Any]]:
    return asyncio.run(train_simulated(simulated_settings(**train), run, engine, learner))


def played(run: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(run / "trajectories.jsonl"))


class MeetingLearner(SimulatedLearner):
    """Its updates end while many requests are under way, so that the next version is loaded in the midst of them."""

    def __init__(self, engine: WatchedEngine) -> None:
        super().__init__(0.0)
        self._engine = engine

    def update(self, batch: Batch, loss: Loss) -> UpdateReport:
        until = time.monotonic() + 0.5  # after the last update there are none
        while self._engine.underway < 8 and time.monotonic() < until:
            time.sleep(0.0005)
        return super().update(batch, loss)


class NappingLearner(SimulatedLearner):
    """Works and moves its weights only while the engine sleeps."""

    def __init__(self, engine: WatchedEngine) -> None:
        super().__init__(0.01)
        self._engine = engine
        self.calls: list[str] = []

    def _called(self, name: str) -> None:
        assert self._engine.naps and not self._engine.naps[-1][1], f"{name} while the engine has the device"
        self.calls.append(name)

    def wake(self) -> None:
        self._called("wake")

    def sleep(self) -> None:
        self._called("sleep")

    def update(self, batch: Batch, loss: Loss) -> UpdateReport:
        self._called("update")
        return super().update(batch, loss)


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_no_token_is_trained_on_beyond_the_bound_and_none_is_wasted(staleness: int, tmp_path: Path) -> None:
    engine = WatchedEngine()
    learner = MeetingLearner(engine) if staleness else SimulatedLearner(0.0)
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
        assert all(seconds >= 0.9 * UPDATE_S for seconds in idle) if staleness == 0 else min(idle) < 0.9 * UPDATE_S
    assert during[0] == 0 < during[1]


def test_what_is_played_does_not_depend_on_how_far_ahead_it_is_played(tmp_path: Path) -> None:
    seen = []
    for staleness in (0, 2):
        train(tmp_path / str(staleness), SimulatedEngine(TURN_S), SimulatedLearner(0.01), max_staleness=staleness)
        seen.append({record["id"]: record["reward"] for record in played(tmp_path / str(staleness))})
    assert seen[0] == seen[1]


def test_versions_are_recorded_turn_by_turn_and_may_change_within_an_episode(tmp_path: Path) -> None:
    engine = WatchedEngine()
    train(tmp_path / "run", engine, MeetingLearner(engine), iterations=6, max_staleness=2)
    versions = [[turn["policy_version"] for turn in record["turns"]] for record in played(tmp_path / "run")]
    assert all(each == sorted(each) for each in versions)
    assert any(len(set(each)) > 1 for each in versions), "no swap met an episode: the test shows nothing"


def test_groups_that_are_too_old_are_dropped_and_counted(tmp_path: Path) -> None:
    """An engine that keeps serving version 2: its tokens are 1, 2, ... versions old from version 3 on."""
    engine, learner = WatchedEngine(stale_from=3), SimulatedLearner(0.01)
    records = train(tmp_path / "run", engine, learner, iterations=8, max_staleness=1)
    fresh = [record for record in records if record["updates"]]
    stale = [record for record in records if not record["updates"]]
    assert len(learner.batches) == len(fresh) and all(record["staleness_max"] <= 1 for record in fresh)
    assert stale and all(record["over_age"] > 0 and "staleness_max" not in record for record in stale)
    assert all(record["informative"] == 0 for record in stale)


def test_an_engine_sleeps_exactly_while_the_learner_works(tmp_path: Path) -> None:
    engine = WatchedEngine(sleeps=True)
    learner = NappingLearner(engine)
    train(tmp_path / "run", engine, learner, iterations=3, max_staleness=0)
    assert learner.calls == ["wake", "update", "sleep"] * 3
    assert len(engine.naps) == len(learner.spans) == 3
    for (down, up), (began, ended) in zip(engine.naps, learner.spans, strict=True):
        assert down <= began and ended <= up


def saved(run: Path, iteration: int) -> Checkpoint:
    return checkpoints.verified(run / "checkpoints" / f"step_{iteration}")


def test_after_two_resumes_no_group_is_lost_and_none_is_trained_on_twice(tmp_path: Path) -> None:
    settings = simulated_settings(iterations=6, max_staleness=2, keep_checkpoints=0)
    runs = [tmp_path / name for name in ("first", "second", "third")]
    checkpoint = None
    for run, goes_on_after in zip(runs, (2, 4, 6), strict=True):
        engine, learner = SimulatedEngine(TURN_S), SimulatedLearner(UPDATE_S)
        records = asyncio.run(train_simulated(settings, run, engine, learner, checkpoint=checkpoint))
        assert all(record["over_age"] == 0 and record["staleness_max"] <= 2 for record in records)
        checkpoint = saved(run, goes_on_after)
        assert bool(checkpoint.state["unsettled"]) == (goes_on_after < 6), "rollouts were ahead of the learner"
    spans = ((0, 2), (2, 4), (4, 6))
    kept = [
        record
        for run, (after, last) in zip(runs, spans, strict=True)
        for record in played(run)
        if after < record["iteration"] <= last
    ]
    asked = Counter(record["task"]["id"] for record in kept)
    assert len(asked) == 6 * 8 and set(asked.values()) == {4}
    assert len({record["id"] for record in kept}) == len(kept)


@pytest.mark.parametrize(("staleness", "every"), [(0, 2), (0, 3), (1, 2), (1, 3), (2, 2)])
def test_a_lagging_engine_adds_its_lag_to_the_bound_also_when_resumed(
    staleness: int, every: int, tmp_path: Path
) -> None:
    """Two groups of two an iteration: now and then none is informative, and no version is published."""
    settings = simulated_settings(
        iterations=13, max_staleness=staleness, sync_every=every, group_size=2, keep_checkpoints=0
    )
    settings = settings.model_copy(update={"pool": settings.pool.model_copy(update={"sandboxes": 4})})
    engine = WatchedEngine()
    records = asyncio.run(train_simulated(settings, tmp_path / "run", engine, SimulatedLearner(0.01)))
    published = sum(record["updates"] for record in records)
    assert 0 < published < 13 and engine.loads[-1][0] == published
    assert [number for number, _ in engine.loads] == sorted({number for number, _ in engine.loads})
    lagging = next(
        iteration
        for iteration in range(3, 13)
        if (found := saved(tmp_path / "run", iteration).state)["serving_version"] < found["policy_version"]
    )
    engine, learner = WatchedEngine(), SimulatedLearner(0.01)
    again = asyncio.run(
        train_simulated(settings, tmp_path / "again", engine, learner, checkpoint=saved(tmp_path / "run", lagging))
    )
    oldest = [record["staleness_max"] for record in [*records, *again] if record["updates"]]
    assert 1 <= max(oldest) <= staleness + every - 1
    assert all(record["over_age"] == 0 for record in [*records, *again])


class CountingLearner(SimulatedLearner):
    """Counts the trajectories that are alive at each update."""

    def __init__(self) -> None:
        super().__init__(0.01)
        self.alive: list[int] = []

    def update(self, batch: Batch, loss: Loss) -> UpdateReport:
        gc.collect()
        self.alive.append(sum(type(thing) is Trajectory for thing in gc.get_objects()))
        return super().update(batch, loss)


def test_a_long_run_keeps_no_more_than_what_is_ahead(tmp_path: Path) -> None:
    learner = CountingLearner()
    settings = simulated_settings(iterations=8, max_staleness=1)
    asyncio.run(train_simulated(settings, tmp_path / "run", SimulatedEngine(0.0), learner))
    assert max(learner.alive[5:]) <= learner.alive[0] + 3 * 32
