"""Running of workflows: in this thread, another one, or the caller's event loop; with callbacks, signals and errors."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from finqa.explained_errors import explained
from finqa.recordings import Episode
from finqa.results import Progress
from finqa_cli.masking import Masker
from finqa_cli.runs.interrupts import ALWAYS_STOPPING, Stopper, run
from finqa_cli.runs.jsonl import SCHEMA_VERSION
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.training.torchrun import leading
from finqa_cli.types import Trajectory

OnEpisode = Callable[[Episode], object]
"""Callback for each episode, once it is on disk."""
OnProgress = Callable[[Progress], object]
"""Callback for the progress of a phase."""
OnMessage = Callable[[str], object]
"""Callback for each line that the command would print to stderr."""

Result = TypeVar("Result")

_SIGNALS_BEFORE_LEAVING = 2
"""Signals of one kind that are passed on to a workflow in another thread. The next one returns to the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Functions of the caller, called while a workflow runs. Their return values are ignored.

    Attributes:
        on_episode: Called with each episode once it is on disk.
        on_progress: Called with the progress of a phase.
        on_message: Called with each line that the command prints to stderr.
    """

    on_episode: OnEpisode | None = None
    on_progress: OnProgress | None = None
    on_message: OnMessage | None = None


class CallbackReporter(Reporter):
    """Passes progress to callbacks.

    If a callback raises an exception, the workflow ends and the exception is raised to the caller.

    Attributes:
        stopper: Stops the workflow.
        failure: Exception of a callback; None if there was none.
    """

    live = True

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._phases: dict[str, Progress] = {}
        self.stopper = Stopper(self)
        self.failure: BaseException | None = None

    def line(self, text: str) -> None:
        """Pass on a line, with secrets masked."""
        self._call(self._callbacks.on_message, Masker()(text))

    def start(self, phase: str, total: int | None, *, own_lines: bool = False) -> None:
        """Report the start of a phase."""
        self._show(Progress(phase=phase, done=0, total=total))

    def advance(self, phase: str, done: int, **fields: object) -> None:
        """Report the progress of a phase."""
        if (state := self._phases.get(phase)) is not None:
            self._show(Progress(phase=phase, done=done, total=state.total, fields=fields))

    def finish(self, phase: str) -> None:
        """Report the end of a phase."""
        if (state := self._phases.get(phase)) is not None:
            self._show(Progress(phase=phase, done=state.done, total=state.total, fields=state.fields, ended=True))
            del self._phases[phase]

    def drop(self, phase: str) -> None:
        """Forget a phase without a report."""
        self._phases.pop(phase, None)

    def episode(self, trajectory: Trajectory, facts: Mapping[str, Any]) -> None:
        """Pass on an episode as in `Run.episodes`, but without its number."""
        if self._callbacks.on_episode is not None:
            record = {"schema_version": SCHEMA_VERSION, **facts, **trajectory_record(trajectory)}
            self._call(self._callbacks.on_episode, Episode.of_record(record))

    def _show(self, progress: Progress) -> None:
        self._phases[progress.phase] = progress
        self._call(self._callbacks.on_progress, progress)

    def _call(self, callback: Callable[[Any], object] | None, value: object) -> None:
        if callback is None or self.failure is not None:
            return
        try:
            callback(value)
        except BaseException as error:  # raised to the caller when the workflow has cleaned up
            self.failure = error
            self.stopper.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Result]):
    """A workflow that is ready to run.

    Attributes:
        start: Creates the coroutine of the workflow.
        remedy: Command that resumes the run, shown if a signal stops it.
        learner: Name of the learner; empty if nothing is trained.
        notes: Messages for the caller before the start.
    """

    start: Callable[[Reporter, Stopper], Coroutine[Any, Any, Result]]
    remedy: str
    learner: str = ""
    notes: tuple[str, ...] = ()

    async def begin(self, reporter: CallbackReporter) -> Result:
        """Pass the notes on and run the workflow."""
        for note in self.notes:
            reporter.line(note)
        return await self.start(reporter, reporter.stopper)


def call(prepare: Callable[[], Call[Result]], callbacks: Callbacks) -> Result:
    """Run a workflow to its end, also if an event loop is running in this thread, as in a notebook.

    Without a running loop it runs in this thread. In the main thread SIGINT, SIGTERM and SIGHUP then stop it as they
    stop the commands, unless the program handles them itself; the handlers are restored afterwards. With a running
    loop it runs in another thread, which the same signals stop.

    Args:
        prepare: Resolves the settings; raises an error if they are invalid.
        callbacks: Functions of the caller.

    Raises:
        FinqaError: It failed; the error has a remedy, also as a note of the traceback.
        InterruptedRun: Ctrl-C or a signal stopped it; the run can be resumed.
    """
    reporter = CallbackReporter(callbacks)
    try:
        with explained():
            prepared = prepare()
            with leading(prepared.learner):
                result = _in_thread(prepared, reporter) if _has_running_loop() else _here(prepared, reporter)
    except (Exception, asyncio.CancelledError):
        if reporter.failure is None:
            raise
    if reporter.failure is not None:
        raise reporter.failure
    return result


async def call_async(prepare: Callable[[], Call[Result]], callbacks: Callbacks) -> Result:
    """Run a workflow in the running event loop; callbacks are called in it. Cancelling it ends the run cleanly.

    Args:
        prepare: Resolves the settings, in another thread; raises an error if they are invalid.
        callbacks: Functions of the caller.

    Raises:
        FinqaError: It failed; the error has a remedy, also as a note of the traceback.
        asyncio.CancelledError: It was cancelled, as `asyncio.run` does for Ctrl-C; the run can be resumed.
    """
    reporter = CallbackReporter(callbacks)
    try:
        with explained():
            prepared = await asyncio.to_thread(prepare)
            with leading(prepared.learner):
                work = asyncio.ensure_future(prepared.begin(reporter))
                reporter.stopper.watch(work, prepared.remedy, signals=())
                result = await work
    except (Exception, asyncio.CancelledError):
        if reporter.failure is None:
            raise
    if reporter.failure is not None:
        raise reporter.failure
    return result


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _here(prepared: Call[Result], reporter: CallbackReporter) -> Result:
    """Run a workflow in this thread."""
    with _own_signals() as signals:
        return run(prepared.begin(reporter), reporter.stopper, remedy=prepared.remedy, signals=signals)


def _in_thread(prepared: Call[Result], reporter: CallbackReporter) -> Result:
    """Run a workflow in another thread; signals to this process stop it there."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(run(prepared.begin(reporter), reporter.stopper, remedy=prepared.remedy, signals=()))
        except BaseException as error:
            errors.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name="finqa", daemon=True)
    with _own_signals() as signals, _passing_on((*signals, signal.SIGINT), reporter.stopper):
        thread.start()
        thread.join()
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def _own_signals() -> Iterator[tuple[signal.Signals, ...]]:
    """Yield the signals that the program does not handle itself, and restore all handlers afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield ()
        return
    usual = (signal.SIG_DFL, signal.default_int_handler)
    handlers = {number: signal.getsignal(number) for number in ALWAYS_STOPPING}
    try:
        yield tuple(number for number, handler in handlers.items() if handler in usual)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _passing_on(signals: Iterable[signal.Signals], stopper: Stopper) -> Iterator[None]:
    """Pass signals on to a workflow in another thread, also SIGINT if the event loop of this thread handles it.

    That event loop is blocked until the workflow ends, so its own handler would do nothing. The third signal of a kind
    returns to the caller at once.
    """
    counts: Counter[int] = Counter()

    def stop(number: int, frame: object) -> None:
        counts[number] += 1
        if counts[number] > _SIGNALS_BEFORE_LEAVING:
            raise KeyboardInterrupt
        stopper.request(signal.Signals(number))

    if threading.current_thread() is threading.main_thread():
        for number in set(signals):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, stop)
    yield
