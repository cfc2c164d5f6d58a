"""Rollouts ahead of the learner when a user stops the run or something fails: all ends, and nothing is hidden."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fixtures.watched_engine import UPDATE_S, WatchedEngine

from benchmarks.async_training.run import simulated_settings, train_simulated
from benchmarks.async_training.simulation import SimulatedLearner
from finqa_cli.errors import EngineError, InterruptedRun, ServiceUnavailableError, StorageError
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.training.rl.trainer import Trainer
from finqa_cli.types import Batch, Completion, GenerateRequest, Loss, PolicyVersion, UpdateReport

HANG_S = 60.0


def played(run: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(run / "trajectories.jsonl"))


class StoppedLearner(SimulatedLearner):
    """A user presses Ctrl-C in its third update."""

    trainer: Trainer

    def update(self, batch: Batch, loss: Loss) -> UpdateReport:
        if len(self.spans) == 2:
            self.trainer.context.stopper.signal = signal.SIGINT
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
    assert engine.cut == engine.seats == 0


def test_a_stop_during_an_evaluation_lets_what_runs_ahead_finish_too(tmp_path: Path) -> None:
    engine, learner = WatchedEngine(), StoppedLearner(UPDATE_S)

    def listen(trainer: Trainer) -> None:
        trainer.held_out = trainer.tasks[:1]
        learner.listen(trainer)

    settings = simulated_settings(iterations=9, max_staleness=2, eval_every=1)
    with pytest.raises(InterruptedRun):
        asyncio.run(train_simulated(settings, tmp_path / "run", engine, learner, listen=listen))
    assert engine.cut == engine.underway == engine.seats == 0
    assert Counter(record["phase"] for record in played(tmp_path / "run"))["train"] > 3 * 32


class FailingLearner(SimulatedLearner):
    """Its third update, publication or checkpoint fails, or its third update is when Ctrl-C is pressed twice.

    That is once the engine has requests of the iteration after this one.
    """

    def __init__(self, what: str, ahead: threading.Event) -> None:
        super().__init__(0.005)
        self._what = what
        self._ahead = ahead
        self._left = {"update": 3, "publish": 3, "save": 3}
        self.main: asyncio.Task[Any] | None = None

    def _meet(self, what: str) -> None:
        self._left[what] -= 1
        if what == self._what and not self._left[what]:
            assert self._ahead.wait(HANG_S)
            raise StorageError(f"the third {what} failed")

    def update(self, batch: Batch, loss: Loss) -> UpdateReport:
        self._meet("update")
        if self._what == "cancel" and not self._left["update"]:
            assert self.main is not None and self._ahead.wait(HANG_S)
            self.main.get_loop().call_soon_threadsafe(self.main.cancel)
        return super().update(batch, loss)

    def publish(self, folder: Path, number: int) -> PolicyVersion:
        if folder.parent.name == "policies":
            self._meet("publish")
        return super().publish(folder, number)

    def save(self, folder: Path) -> None:
        self._meet("save")
        super().save(folder)


class FailingEngine(WatchedEngine):
    """Cannot load its third version, or is gone at its 300th request.

    Requests of the iteration after the one that fails are never answered, so that they are under way when it does.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what
        self._held = "train/0003/" if what == "save" else "train/0004/"  # the first checkpoint is that of iteration 0
        self.ahead = threading.Event()

    async def generate(self, request: GenerateRequest) -> Completion:
        if self._what == "generate" and self.requests == 300:
            self.requests += 1
            raise ServiceUnavailableError("the generate found nothing")
        return await super().generate(request)

    async def answer(self, request: GenerateRequest) -> Completion:
        if self._what != "generate" and request.key.startswith(self._held):
            self.ahead.set()
            await asyncio.Event().wait()
        return await super().answer(request)

    async def load(self, policy: PolicyVersion) -> None:
        if self._what == "load" and policy.number == 3:
            assert await asyncio.to_thread(self.ahead.wait, HANG_S)
            raise EngineError("the third load failed")
        await super().load(policy)


@pytest.mark.parametrize("what", ["update", "publish", "save", "cancel", "load", "generate"])
def test_whatever_fails_ends_everything_and_is_what_is_told(what: str, tmp_path: Path) -> None:
    engine = FailingEngine(what)
    learner = FailingLearner(what, engine.ahead)

    async def run() -> None:
        learner.main = asyncio.current_task()
        settings = simulated_settings(iterations=9, max_staleness=1)
        try:
            await train_simulated(settings, tmp_path / "run", engine, learner)
        finally:
            assert asyncio.all_tasks() == {learner.main} and engine.underway == engine.seats == 0

    errors = (StorageError, EngineError, ServiceUnavailableError, RuntimeError, asyncio.CancelledError)
    with pytest.raises(errors) as raised:
        asyncio.run(run())
    if what == "cancel":
        assert raised.type is asyncio.CancelledError
    else:
        assert what in str(raised.value)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["status"] == ("interrupted" if what == "cancel" else "failed")
    assert engine.cut, "rollouts were ahead, and were cancelled"
    folders = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.is_dir()]
    assert all(name.startswith("step_") for name in folders), "no checkpoint is half written"
    ids = [record["id"] for record in played(tmp_path / "run")]
    assert len(ids) == len(set(ids)) > 32
