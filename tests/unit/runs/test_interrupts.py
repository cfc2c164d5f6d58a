"""Signals to a workflow in this process, and clean-up that nothing cuts short."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from finqa_cli.errors import InterruptedRun
from finqa_cli.runs import interrupts
from finqa_cli.runs.interrupts import DRAIN_SECONDS, REQUEUE, Stopper, run, stop_signals, to_the_end
from finqa_cli.runs.reporter import NullReporter


class Lines(NullReporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def line(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in interrupts.DRAIN_SECONDS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", list(interrupts.DRAIN_SECONDS))
def test_the_first_signal_lets_work_finish(number: signal.Signals) -> None:
    reporter = Lines()
    stopper = Stopper(reporter)

    async def work() -> str:
        os.kill(os.getpid(), number)
        while not stopper.requested:  # noqa: ASYNC110  signals set no event
            await asyncio.sleep(0)
        stopper.check("finqa train --resume runs/x")
        return "unreachable"

    with pytest.raises(InterruptedRun, match=number.name) as caught:
        run(work(), stopper, remedy="finqa train --resume runs/x", signals=tuple(DRAIN_SECONDS))
    assert caught.value.exit_code == (85 if number is REQUEUE else 128 + number)
    assert caught.value.remedy == "finqa train --resume runs/x"
    (said,) = reporter.said  # the command that continues is printed once, at the end
    assert said == f"{number.name}: the run ends within 2 s; press again to end at once."


def test_work_that_does_not_finish_in_time_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(interrupts.DRAIN_SECONDS, signal.SIGTERM, 0.05)
    cleaned: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append("sandboxes")

    with pytest.raises(InterruptedRun) as caught:
        run(work(), Stopper(NullReporter()))
    assert caught.value.exit_code == 143 and cleaned == ["sandboxes"]


def test_without_patience_the_first_signal_ends_it_and_the_next_would_kill() -> None:
    reporter = Lines()
    handlers: list[object] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            handlers.append(signal.getsignal(signal.SIGINT))

    with pytest.raises(InterruptedRun):
        run(work(), Stopper(reporter, patient=False))
    assert handlers == [signal.SIG_DFL]
    assert reporter.said == ["Ending the run now; press again to kill the process, which may leave sandboxes behind."]


def test_no_library_takes_the_signals_over() -> None:
    stopper = Stopper(NullReporter())
    taken: list[str] = []

    async def work() -> tuple[bool, bool]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, taken.append, "SIGINT")  # as python-socketio does
        loop.add_signal_handler(signal.SIGUSR1, taken.append, "SIGUSR1")  # no signal of this command
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0.05)
        return stopper.requested, loop.remove_signal_handler(signal.SIGUSR1)

    assert run(work(), stopper) == (True, True)
    assert taken == ["SIGUSR1"]


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ((REQUEUE, REQUEUE), 85),
        ((REQUEUE, signal.SIGTERM), 143),
        ((REQUEUE, signal.SIGINT), 130),
        ((signal.SIGTERM, REQUEUE), 143),
    ],
)
def test_who_asks_for_the_end_is_not_queued_again(numbers: tuple[signal.Signals, ...], code: int) -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            for number in numbers:
                os.kill(os.getpid(), number)
                await asyncio.sleep(0)
            await asyncio.sleep(60)
        finally:
            cleaned.append("sandboxes")

    with pytest.raises(InterruptedRun) as caught:
        run(work(), Stopper(NullReporter()), signals=tuple(DRAIN_SECONDS))
    assert caught.value.exit_code == code and cleaned == ["sandboxes"]


def test_the_signal_to_queue_again_is_harmless_once_the_work_is_done() -> None:
    async def work() -> str:
        return "done"

    signal.signal(REQUEUE, signal.SIG_DFL)
    assert REQUEUE not in stop_signals(), "the default ends commands that cannot be resumed"
    signal.signal(REQUEUE, lambda *_: None)
    assert run(work(), Stopper(NullReporter()), signals=stop_signals()) == "done"
    os.kill(os.getpid(), REQUEUE)


def test_under_nohup_a_closed_terminal_ends_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stopper = Stopper(NullReporter())

    async def work() -> bool:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        return stopper.requested

    assert run(work(), stopper) is False


async def test_clean_up_outlives_every_cancellation() -> None:
    ended: list[str] = []

    async def end_sandboxes() -> str:
        await asyncio.sleep(0.05)
        ended.append("sandboxes")
        return "done"

    assert await to_the_end(end_sandboxes()) == "done"
    task = asyncio.create_task(to_the_end(end_sandboxes()))
    for _ in range(3):
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["sandboxes", "sandboxes"]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_failed_clean_up_is_told(cancelled: bool) -> None:
    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise OSError("the disk is full")

    task = asyncio.create_task(to_the_end(fail()))
    await asyncio.sleep(0)
    if cancelled:
        task.cancel()
    with pytest.raises((OSError, asyncio.CancelledError)) as caught:
        await task
    assert isinstance(caught.value, asyncio.CancelledError) is cancelled
    reason = caught.value.__cause__ if cancelled else caught.value
    assert str(reason) == "the disk is full"
