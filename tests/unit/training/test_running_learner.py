"""The learner for the length of a command, with learners that only report."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.run_contexts import make_context

from finqa_cli.contracts import LearnerEvents
from finqa_cli.errors import ConfigError, DeviceMemoryError, LearnerProcessError
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.runs.run_folder import RunFolder, read_run
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.training import running_learner as module
from finqa_cli.training.running_learner import fit_memory, run_learner


class Reports:
    """Does nothing but report; `start` calls what it is given with where to report to."""

    starts_processes = True

    def __init__(self, start: Callable[[LearnerEvents], None]) -> None:
        self._start = start
        self.closed = 0
        self.loads_model = False

    def report_to(self, events: LearnerEvents) -> None:
        self._events = events

    def start(self) -> None:
        self._start(self._events)

    def close(self) -> None:
        self.closed += 1


class Starts:
    """A learner that knows of one process only."""

    starts_processes = False

    def start(self) -> None:
        pytest.fail("it was refused")


class Lines(NullReporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


async def use(
    run: Path, learner: object, monkeypatch: pytest.MonkeyPatch, *, seconds: float = 0.0, processes: int = 1
) -> list[str]:
    """Has the learner for some seconds; what is shown meanwhile."""
    settings, reporter = Settings.model_validate({"train": {"learner_processes": processes}}), Lines()
    monkeypatch.setattr(module, "make_learner", lambda *arguments, **options: learner)
    with RunFolder.create(run, command="train", settings=to_public_dict(settings), save_token_ids=False) as folder:
        async with run_learner(make_context(folder, settings, reporter=reporter), "model") as made:
            assert made is learner
            await asyncio.sleep(seconds)
    return reporter.lines


async def test_events_are_recorded_and_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"work": "update", "reason": "CUDA out of memory", "tokens": 16_000, "token_budget": 8_000}
    learner = Reports(lambda events: events.event("out_of_memory", facts))
    (line,) = await use(tmp_path / "run", learner, monkeypatch)
    assert (
        "does not have enough memory for a micro-batch of 16,000 tokens; from now on, micro-batches "
        "have at most 8,000 tokens." in line
    )
    (record,) = read_jsonl(tmp_path / "run" / "events.jsonl")
    assert record["event"] == "out_of_memory" and record.items() >= facts.items() and learner.closed == 1


async def test_a_full_device_while_scoring_does_not_lower_the_budget_of_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"work": "scoring", "reason": "CUDA out of memory", "tokens": 16_000, "scoring_budget": 8_000}
    learner = Reports(lambda events: events.event("out_of_memory", facts))
    (line,) = await use(tmp_path / "run", learner, monkeypatch)
    assert (
        "does not have enough memory to score a micro-batch of 16,000 tokens; from now on, it scores "
        "at most 8,000 tokens at once." in line
    )
    assert fit_memory(Settings(), tmp_path / "run") == Settings()


async def test_a_process_that_is_gone_between_calls_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = LearnerProcessError("Learner process 2 of 2 (pid 7) was ended by SIGKILL.")

    def later(events: LearnerEvents) -> None:
        threading.Timer(0.05, events.failed, [gone]).start()

    learner = Reports(later)
    with pytest.raises(LearnerProcessError) as caught:
        await use(tmp_path / "run", learner, monkeypatch, seconds=60)
    assert caught.value is gone and gone.remedy == f"finqa train --resume {tmp_path / 'run'}" and learner.closed == 1
    assert read_run(tmp_path / "run")["status"] == "failed", "and not interrupted, as by a signal"


async def test_a_process_that_is_gone_is_reported_once_where_a_call_failed_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = LearnerProcessError("Learner process 2 of 2 (pid 7) was ended by SIGKILL.")
    learner = Reports(lambda events: None)

    def start() -> None:
        raise gone

    def close() -> None:
        learner._events.failed(gone)
        time.sleep(0.1)  # the event loop learns of it while the learner is closed

    monkeypatch.setattr(learner, "start", start)
    monkeypatch.setattr(learner, "close", close)
    with pytest.raises(LearnerProcessError) as caught:
        await use(tmp_path / "run", learner, monkeypatch)
    assert caught.value is gone and gone.remedy == f"finqa train --resume {tmp_path / 'run'}"


async def test_another_cancellation_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Reports(lambda events: None)
    task = asyncio.create_task(use(tmp_path / "run", learner, monkeypatch, seconds=60))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert learner.closed == 1


@pytest.mark.parametrize("budget", [0, 500])
async def test_a_full_device_of_several_is_recorded_for_the_resumed_run(
    tmp_path: Path, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(events: LearnerEvents) -> None:
        raise DeviceMemoryError("The memory of cuda:1 is full.", remedy="another", token_budget=budget)

    with pytest.raises(DeviceMemoryError) as caught:
        await use(tmp_path / "run", Reports(fail), monkeypatch)
    assert caught.value.remedy == (f"finqa train --resume {tmp_path / 'run'}" if budget else "another")
    resumed = fit_memory(Settings(), tmp_path / "run")
    assert resumed.train.token_budget == (budget or Settings().train.token_budget)


def test_a_run_without_such_events_keeps_its_token_budget(tmp_path: Path) -> None:
    assert fit_memory(Settings(), tmp_path) == Settings()


async def test_a_learner_of_one_process_is_not_given_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="'torch' trains in one process, not in 2") as caught:
        await use(tmp_path / "run", Starts(), monkeypatch, processes=2)
    assert caught.value.remedy == "--learner-processes 1"
