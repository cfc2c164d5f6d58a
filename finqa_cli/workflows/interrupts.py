"""Signals: the first lets running episodes finish, the second ends them, the third ends the process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from finqa_cli.errors import InterruptedRun
from finqa_cli.workflows.reporter import Reporter

Result = TypeVar("Result")

DRAIN_SECONDS = 30.0


class Stopper:
    """Whether somebody asked the command to stop. Without patience the first signal already ends it."""

    def __init__(self, reporter: Reporter, *, patient: bool = True) -> None:
        self._reporter = reporter
        self._patient = patient
        self._main: asyncio.Task[Any] | None = None
        self._drain: asyncio.TimerHandle | None = None
        self.signal: signal.Signals | None = None

    @property
    def requested(self) -> bool:
        """True from the first signal on."""
        return self.signal is not None

    def check(self, remedy: str = "") -> None:
        """Raises InterruptedRun once a stop was requested."""
        if self._drain is not None:
            self._drain.cancel()  # drained in time: nothing may cut the clean-up short
        if self.signal is not None:
            error = InterruptedRun(f"Stopped by {self.signal.name}.", remedy=remedy)
            error.exit_code = 128 + self.signal
            raise error

    def watch(self, main: asyncio.Task[Any]) -> None:
        """Handles SIGINT and SIGTERM for the running loop."""
        self._main = main
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        first, self.signal = not self.requested, self.signal or number
        if first and self._patient:
            self._reporter.line(f"{number.name}: letting running episodes finish; once more ends them now.")
            self._drain = asyncio.get_running_loop().call_later(DRAIN_SECONDS, self._end)
        else:
            self._end()

    def _end(self) -> None:
        """Cancels the work once; from then on a further signal ends the process itself.

        A thread that is busy (a model download, an optimizer step) cannot be cancelled and would be waited for.
        """
        assert self._main is not None
        if self._drain is not None:
            self._drain.cancel()
        self._reporter.line("Ending running episodes; once more ends the process itself.")
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        self._main.cancel()


def run(work: Coroutine[Any, Any, Result], stopper: Stopper, *, remedy: str = "") -> Result:
    """Runs a workflow under the stopper. A cancelled workflow cleans up in its own `finally` blocks.

    Raises:
        InterruptedRun: A second signal, or the end of the drain, cancelled it.
    """

    async def watched() -> Result:
        main = asyncio.current_task()
        assert main is not None
        stopper.watch(main)
        return await work

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        stopper.check(remedy)
        raise
