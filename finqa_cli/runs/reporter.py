"""Display of a command's progress to the user. Results are return values, not progress."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from finqa_cli.types import Trajectory
from finqa_cli.types.run_events import RunEvent

ANNOUNCED_AFTER_S = 0.7
"""Seconds after which work is worth a line or an event: shorter work would only fill the screen."""

PHASE_EVENT = "phase"
"""Event of work that takes longer than `ANNOUNCED_AFTER_S`."""


class Phase(RunEvent):
    """Work that takes longer than a moment begins, such as loading a model or validation."""

    event: Literal["phase"]
    phase: str
    """What is done, as the display names it."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Work that is in progress.

    Attributes:
        text: What is done, as a noun phrase: "validation of 10 demonstrations".
        yields: The work ends by itself soon after a stop was requested; see `Stopper.check_work`.
    """

    text: str
    yields: bool = False


class Reporter:
    """Base class of all reporters, which shows nothing. Calls never block for long and never raise.

    Phases have names, and several may run at once.

    Attributes:
        live: The display is overwritten in place, so that an update every second does not fill the screen.
        works: Work in progress, the newest last. Every reporter knows it, also one that shows nothing.
    """

    live: bool = False
    works: tuple[Work, ...] = ()

    def line(self, text: str) -> None:
        """Show one sentence that stays on the screen."""

    def start(self, phase: str, total: int | None, *, own_lines: bool = False) -> None:
        """Begin a phase.

        Args:
            phase: Name of the phase.
            total: Number of its steps; None: it is not known.
            own_lines: The phase prints a line about each step, so a display that is not live shows nothing else of it.
        """

    def advance(self, phase: str, done: int, **fields: object) -> None:
        """Show that `done` steps of the phase are finished in all, with `fields` such as `reward=0.4`."""

    def finish(self, phase: str) -> None:
        """End the phase, also after an error; its last state stays on the screen. Idempotent."""

    def drop(self, phase: str) -> None:
        """End the phase and remove it from the screen. Idempotent."""

    def episode(self, trajectory: Trajectory, facts: Mapping[str, Any]) -> None:
        """Receive an attempt that is on disk; `facts` are the fields that were added to its record."""

    @contextmanager
    def work(
        self,
        text: str,
        *,
        yields: bool = False,
        shown: bool = True,
        on_event: Callable[[str, Mapping[str, Any]], object] | None = None,
    ) -> Iterator[None]:
        """Show for this block, from its first moment, what is done; a signal's message names it.

        Args:
            text: See `Work`.
            yields: See `Work`.
            shown: False if another phase shows the work.
            on_event: Receives the event `phase` if the block takes longer than a moment.
        """
        work = Work(text, yields)
        self.works = (*self.works, work)

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the run's folder was closed in this moment
                assert on_event is not None
                on_event(PHASE_EVENT, {"phase": text})

        timer = call_later(ANNOUNCED_AFTER_S, tell) if on_event is not None else None
        if shown:
            self.start_work(work)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self.works = tuple(each for each in self.works if each is not work)
            if shown:
                self.end_work(work)

    def start_work(self, work: Work) -> None:
        """Show the beginning of work."""

    def advance_work(self, done: int, total: int) -> None:
        """Show that `done` of `total` parts of the newest work that yields are finished."""

    def end_work(self, work: Work) -> None:
        """Show the end of work."""

    def newest_that_yields(self) -> Work | None:
        """Return the newest work that yields; None if there is none."""
        return next((work for work in reversed(self.works) if work.yields), None)


class NullReporter(Reporter):
    """Shows nothing, for tests and for `--json` and `--quiet`."""


def call_later(seconds: float, call: Callable[[], None]) -> threading.Timer:
    """Call a function in a thread after some seconds, even if the event loop is busy; the result can be cancelled."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer
