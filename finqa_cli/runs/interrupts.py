"""Signals: after the first, work ends soon; the second cancels it at once; the third ends the process.

After the first signal nothing new begins. What runs then has `GRACE_S` to end, or `DRAIN_SECONDS` or `KEPT_SECONDS` if
it is worth a wait (`Stopper.keeping`). Work in another thread cannot be cancelled: it asks `Stopper.check_work` between
its parts.

Schedulers send SIGUSR1 before the time limit of a job. It stops a command as SIGTERM does, but with an exit code on
which the job's script queues the job again. `finqa_cli.app` selects the commands: those that can be resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, TypeVarTuple, Unpack

from finqa_cli.errors import BudgetReachedError, InterruptedRun, RequeuedRun
from finqa_cli.runs.reporter import Reporter

Result = TypeVar("Result")
Rest = TypeVarTuple("Rest")

REQUEUE = signal.SIGUSR1

DRAIN_SECONDS = {signal.SIGINT: 30.0, signal.SIGTERM: 20.0, signal.SIGHUP: 20.0, REQUEUE: 20.0}
"""Longest wait for work that ends by itself, in seconds. Schedulers often kill 30 s after SIGTERM."""

KEPT_SECONDS = {signal.SIGTERM: 4.0, signal.SIGHUP: 4.0}
"""Seconds that episodes which are kept have to finish, where that is less than the longest wait: `docker stop` kills
10 s after SIGTERM, and then sandboxes would be left behind."""

GRACE_S = 2.0
"""Seconds that all other work has to end after the first signal. A resumed run repeats what did not end."""

ALWAYS_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that stop every command, also commands that cannot be resumed."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop this command; SIGUSR1 only if the process already handles or ignores it."""
    is_requeued = signal.getsignal(REQUEUE) is not signal.SIG_DFL
    return (*ALWAYS_STOPPING, REQUEUE) if is_requeued else ALWAYS_STOPPING


def next_signal(before: signal.Signals | None, number: signal.Signals) -> signal.Signals:
    """Return the signal that decides the exit code: the first one, but another signal replaces SIGUSR1.

    Otherwise a job that is cancelled while it stops for SIGUSR1 would be queued again.
    """
    return number if before is None or before is REQUEUE else before


def stopped_by(number: signal.Signals, *, remedy: str) -> InterruptedRun:
    """Return the error, with its exit code, of a command that a signal stopped."""
    error = (RequeuedRun if number is REQUEUE else InterruptedRun)(f"Stopped by {number.name}.", remedy=remedy)
    if number is not REQUEUE:
        error.exit_code = 128 + number
    return error


class SignalKeepingLoop(asyncio.SelectorEventLoop):
    """An event loop in which libraries cannot replace the stopper's signal handlers.

    python-socketio, which the Daytona SDK uses, would handle SIGINT by cancelling every task of the loop.

    Attributes:
        kept: The signals whose handlers stay.
        hurries: A signal arrived, so the loop does not wait for threads whose work was dropped, such as one that loads
            a model. `finqa_cli.__main__` ends the process in spite of them.
    """

    kept: tuple[signal.Signals, ...] = ()
    hurries: bool = False

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  asyncio's own
        """Wait for the threads of `asyncio.to_thread`, unless the loop hurries."""
        if not self.hurries:
            await super().shutdown_default_executor(*(() if timeout is None else (timeout,)))

    def add_signal_handler(self, sig: int, callback: Callable[[Unpack[Rest]], object], *args: *Rest) -> None:
        """Add a handler; do nothing for the signals in `kept`."""
        if sig not in self.kept:
            super().add_signal_handler(sig, callback, *args)


class Stopper:
    """Stops a command after signals, or when its budget is spent.

    Attributes:
        signal: The signal that decides the exit code; None before the first.
    """

    def __init__(self, reporter: Reporter, *, patient: bool = True) -> None:
        self._reporter = reporter
        self._patient = patient
        self._main: asyncio.Task[Any] | None = None
        self._drain: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: tuple[signal.Signals, ...] = ()
        self._remedy = ""
        self._budget = ""
        self._kept = 0
        self._bounded: set[asyncio.Future[Any]] = set()
        self._deadline = float("inf")
        self.signal: signal.Signals | None = None

    @property
    def requested(self) -> bool:
        """Whether a signal arrived or the budget is spent."""
        return self.signal is not None or bool(self._budget)

    def spend_no_more(self, reason: str) -> None:
        """Let running episodes finish and start no others; `reason` names the limit that was reached."""
        if not self.requested:
            self._budget = reason
            self._reporter.line(f"{reason} Running episodes may finish.")

    def check(self, remedy: str = "") -> None:
        """Raise an error if a stop was requested.

        Args:
            remedy: Command that resumes the run; empty: the one that `watch` was called with.

        Raises:
            InterruptedRun: A signal requested the stop.
            BudgetReachedError: The budget is spent.
        """
        self._stop_waiting()  # all work ended in time, so the clean-up must not be cancelled
        remedy = remedy or self._remedy
        if self.signal is not None:
            raise stopped_by(self.signal, remedy=remedy)
        if self._budget:
            larger = " with a larger --max-cost or --max-tokens" if "--resume" in remedy else ""
            raise BudgetReachedError(self._budget, remedy=f"{remedy}{larger}")

    def check_work(self) -> None:
        """Raise an error if work in another thread has to end now. Called between its parts, in any thread.

        Raises:
            InterruptedRun: The time to end after a signal is over, or the workflow was cancelled.
        """
        if time.monotonic() < self._deadline:
            return
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._stop_waiting)
        if self.signal is None:
            raise InterruptedRun("The work was cancelled.", remedy=self._remedy)
        raise stopped_by(self.signal, remedy=self._remedy)

    @contextmanager
    def keeping(self, kept: bool) -> Iterator[None]:
        """Give running episodes more time after the first signal if their results are `kept` and cost money.

        It is that of `KEPT_SECONDS`, or of `DRAIN_SECONDS`.
        """
        self._kept += kept
        try:
            yield
        finally:
            self._kept -= kept

    async def bounded(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Await work that only this call drops, and not the whole workflow, when the time after a signal is over.

        Returns:
            The result; None if the work was dropped.
        """
        task = asyncio.ensure_future(work)
        self._bounded.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            return None
        finally:
            self._bounded.discard(task)

    def watch(
        self, main: asyncio.Task[Any], remedy: str = "", *, signals: Collection[signal.Signals] = ALWAYS_STOPPING
    ) -> None:
        """Handle the signals in the running loop. If SIGHUP is ignored, it stays ignored.

        Args:
            main: The task of the work, which is cancelled at the second signal.
            remedy: Command that resumes the run.
            signals: The signals; empty in a thread other than the main thread, which receives none.
        """
        self._main, self._remedy = main, remedy
        # A closed terminal ends the run, so that its sandboxes are not left behind. Under nohup it does not.
        detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._watched = tuple(number for number in signals if not (detached and number is signal.SIGHUP))
        self._loop = asyncio.get_running_loop()
        for number in self._watched:
            self._loop.add_signal_handler(number, self._on_signal, number)
        if isinstance(self._loop, SignalKeepingLoop):
            self._loop.kept = (*ALWAYS_STOPPING, *self._watched)

    def request(self, number: signal.Signals) -> None:
        """Act as if the signal had arrived, in any thread. If the work does not run yet, its first check stops it."""
        if self._loop is None:
            self.signal = next_signal(self.signal, number)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: the work is done
            self._loop.call_soon_threadsafe(self._on_signal, number)

    def cancel(self) -> None:
        """Cancel the work at once, without a signal. Called in its event loop."""
        self._deadline = time.monotonic()
        if self._main is not None:
            self._main.cancel()

    def _on_signal(self, number: signal.Signals) -> None:
        first, self.signal = not self.requested, next_signal(self.signal, number)
        if isinstance(self._loop, SignalKeepingLoop):
            self._loop.hurries = True
        if not (first and self._patient):
            self._end()
            return
        longest = DRAIN_SECONDS[number]
        seconds = min(KEPT_SECONDS.get(number, longest) if self._kept else GRACE_S, longest)
        self._deadline = time.monotonic() + seconds
        self._drain = asyncio.get_running_loop().call_later(seconds, self._time_is_over, longest)
        if self._kept:
            text = f"running episodes may finish in {seconds:.0f} s; press again to end them now."
        else:
            text = f"{self._named()} ends within {seconds:.0f} s; press again to end at once."
        self._reporter.line(f"{number.name}: {text}")

    def _time_is_over(self, longest: float) -> None:
        """Cancel what can be dropped alone, give more time to what ends by itself, and cancel everything else."""
        if not (self._bounded or self._reporter.newest_that_yields()):
            self._end()
            return
        for task in self._bounded:
            task.cancel()
        self._drain = asyncio.get_running_loop().call_later(longest, self._end)

    def _named(self) -> str:
        """Return what is running, for messages."""
        works = self._reporter.works
        return works[-1].text if works else "the run"

    def _stop_waiting(self) -> None:
        if self._drain is not None:
            self._drain.cancel()

    def _end(self) -> None:
        """Cancel the work, and restore the default handlers, so that a further signal ends the process.

        A busy thread (a model download, an optimizer step) cannot be cancelled, and the process would wait for it.
        """
        assert self._main is not None
        self._stop_waiting()
        self._deadline = time.monotonic()
        for number in self._watched:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        self._main.cancel()
        self._reporter.line(
            f"Ending {self._named()} now; press again to kill the process, which may leave sandboxes behind."
        )


def run(
    work: Coroutine[Any, Any, Result],
    stopper: Stopper,
    *,
    remedy: str = "",
    signals: Collection[signal.Signals] = ALWAYS_STOPPING,
) -> Result:
    """Run a workflow under the stopper. A cancelled workflow cleans up in its own `finally` blocks.

    Args:
        work: The workflow.
        stopper: Handles the signals.
        remedy: Command that resumes the run.
        signals: The signals that stop it; empty outside the main thread.

    Raises:
        InterruptedRun: A second signal, or the end of `DRAIN_SECONDS`, cancelled it.
    """

    async def watched() -> Result:
        main = asyncio.current_task()
        assert main is not None
        stopper.watch(main, remedy, signals=signals)
        return await work

    try:
        with asyncio.Runner(loop_factory=SignalKeepingLoop) as runner:
            return runner.run(watched())
    except asyncio.CancelledError:
        stopper.check(remedy=remedy)
        raise
    finally:
        if REQUEUE in signals:  # the closed loop restored the default handler, which would end the finished command
            signal.signal(REQUEUE, signal.SIG_IGN)


async def to_the_end(work: Awaitable[Result]) -> Result:
    """Await work that must not be interrupted, such as ending sandboxes; raise a cancellation only afterwards."""
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation from (None if task.cancelled() else task.exception())
    return task.result()
