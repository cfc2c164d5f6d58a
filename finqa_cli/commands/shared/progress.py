"""Reporters for people, all on stderr: live bars on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from finqa_cli.runs.reporter import NullReporter, Reporter

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def progress(*, as_json: bool = False, quiet: bool = False) -> Iterator[Reporter]:
    """The reporter that suits where stderr goes; open for as long as the work lasts."""
    if as_json or quiet:
        yield NullReporter()
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI"):
        with BarReporter() as bars:
            yield bars
    else:
        yield PlainReporter()


def describe(fields: dict[str, object]) -> str:
    """`reward=0.412 groups=12`: numbers short enough to read in passing."""
    return " ".join(f"{name}={_short(value)}" for name, value in fields.items())


@dataclass(slots=True)
class _Phase:
    total: int | None
    started: float
    shown: float
    done: int = 0
    fields: dict[str, object] = field(default_factory=dict)
    last_line: str = ""


class PlainReporter(Reporter):
    """Lines without control characters, for logs and pipes: at most one per phase every few seconds."""

    def __init__(self) -> None:
        self._phases: dict[str, _Phase] = {}

    def line(self, text: str) -> None:
        """Prints it at once."""
        print(text, file=sys.stderr, flush=True)

    def start(self, phase: str, total: int | None) -> None:
        """Notes the time; short phases print only their end."""
        now = time.monotonic()
        self._phases[phase] = _Phase(total=total, started=now, shown=now)

    def advance(self, phase: str, done: int, **fields: object) -> None:
        """Prints when the last line of this phase is old enough."""
        if (state := self._phases.get(phase)) is None:
            return
        state.done, state.fields = done, fields
        now = time.monotonic()
        if now - state.shown >= SECONDS_BETWEEN_LINES:
            state.shown = now
            self._show(phase, state, now)

    def finish(self, phase: str) -> None:
        """Prints the last state with the time that it took, unless it stands there already."""
        if state := self._phases.pop(phase, None):
            self._show(phase, state, time.monotonic())

    def drop(self, phase: str) -> None:
        """Forgets it."""
        self._phases.pop(phase, None)

    def _show(self, phase: str, state: _Phase, now: float) -> None:
        count = f"{state.done}/{state.total}" if state.total else str(state.done)
        told = f"{count} {describe(state.fields)}"
        if told != state.last_line:
            state.last_line = told
            self.line(f"{phase}: {count} in {now - state.started:.0f} s {describe(state.fields)}".rstrip())


class BarReporter(Reporter):
    """Rich bars on stderr. Use as a context manager: leaving it restores the cursor."""

    live = True

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars: Progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[details]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> BarReporter:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def line(self, text: str) -> None:
        """Prints above the bars."""
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def start(self, phase: str, total: int | None) -> None:
        """Shows a bar, in the place of an unfinished one of the same name."""
        self.finish(phase)
        self._tasks[phase] = self._bars.add_task(phase, total=total, details="")

    def advance(self, phase: str, done: int, **fields: object) -> None:
        """Moves the bar."""
        if (task := self._tasks.get(phase)) is not None:
            self._bars.update(task, completed=done, details=describe(fields))

    def finish(self, phase: str) -> None:
        """Takes the bar away."""
        self.drop(phase)

    def drop(self, phase: str) -> None:
        """Takes the bar away."""
        if (task := self._tasks.pop(phase, None)) is not None:
            self._bars.remove_task(task)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
