"""What commands print: results on stdout, as one JSON document or as text, and progress on stderr."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from finqa_cli.errors import legible, printable
from finqa_cli.masking import Masker, mask_text
from finqa_cli.runs.reporter import ANNOUNCED_AFTER_S, NullReporter, Reporter, Work, call_later

if TYPE_CHECKING:
    import threading

    from rich.progress import Progress, TaskID

SECONDS_BETWEEN_LINES = 5.0

_UNSAFE_IN_JSON = re.compile(r"[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Unsafe characters that `json.dumps` does not escape: control characters, bidirectional marks, lone surrogates."""

_GAP = 2
"""Spaces between columns of a table."""

_LONGEST_NAME, _LONGEST_WORD = 36, 20
"""Width of the longest word that is not broken: in the first column of a table, and in the others. Paths are longer."""

Text = str | Callable[[], str | None]


def emit(result: Mapping[str, Any], *, as_json: bool, text: Text) -> None:
    """Print a result.

    Args:
        result: The document of `--json`; its keys are part of the product's interface.
        as_json: Whether the user gave `--json`.
        text: The readable form, or a function that returns it or prints it itself.
    """
    if as_json:
        document = json.dumps(_without_secrets(result), indent=2, ensure_ascii=False, default=str)
        print(_escaped(document), flush=True)
        return
    rendered = text() if callable(text) else text
    if rendered is not None:
        print(mask_text(rendered), flush=True)


def _without_secrets(value: Any) -> Any:
    """Mask secrets by the form of values. Keys do not count: `token` may be the id of a token."""
    if isinstance(value, Mapping):
        return {key: _without_secrets(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_secrets(item) for item in value]
    return mask_text(value) if isinstance(value, str) else value


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on stdout; see `plain_table`."""
    print(plain_table(headers, rows), flush=True)


def screen_width() -> int | None:
    """Return the width, in columns, that output should fit: `COLUMNS`, else that of the terminal.

    Returns:
        None if stdout is not a terminal and `COLUMNS` is not set: other programs then get one line per row of a table.
    """
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):  # no terminal, or a stream without a file
        return None


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return columns aligned by spaces; a line break inside a cell becomes a space.

    If the table fits `screen_width`, each row is one line. Otherwise long cells are wrapped within their column. If
    the columns would be narrower than their words, each row becomes a block with one line per column.

    Args:
        headers: Names of the columns; empty for a list of names and values.
        rows: Values of the columns.
    """
    lines = aligned(headers, rows)
    screen = screen_width()
    if screen is None or all(_width(line) <= screen for line in lines):
        return "\n".join(lines)
    cells = _cells(headers, rows)
    if not headers or sum(_least_widths(cells)) + _GAP * (len(headers) - 1) <= screen:
        return _wrapped(cells, screen, has_headers=bool(headers))
    return "\n\n".join(_wrapped(list(zip(cells[0], row, strict=True)), screen) for row in cells[1:])


def aligned(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table, one per row, of any width."""
    cells = _cells(headers, rows)
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    return [
        (" " * _GAP).join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _cells(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[list[str]]:
    return [[_cell(value) for value in row] for row in [*([headers] if headers else []), *rows]]


def _wrapped(cells: Sequence[Sequence[str]], width: int, *, has_headers: bool = False) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text as RichText

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=has_headers)
    for column, least in zip(zip(*cells, strict=True), _least_widths(cells), strict=True):
        whole = max(map(_width, column)) <= least  # a column of single words is not broken if others can be
        table.add_column(RichText(column[0]), overflow="fold", no_wrap=whole)
    for row in cells[1:] if has_headers else cells:
        table.add_row(*map(RichText, row))
    written = io.StringIO()
    Console(file=written, width=width, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def _least_widths(cells: Sequence[Sequence[str]]) -> list[int]:
    """Return the smallest readable width of each column: that of its longest word, up to a limit for paths."""
    columns = zip(*cells, strict=True)
    words = [max((_width(word) for cell in column for word in cell.split()), default=0) for column in columns]
    return [min(word, _LONGEST_NAME if place == 0 else _LONGEST_WORD) for place, word in enumerate(words)]


def _width(text: str) -> int:
    """Return the columns that a text occupies on a screen; some characters occupy two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def age_text(seconds: float) -> str:
    """Return a duration in the largest unit in which it is at least 2: `90 s`, `45 min`, `30 h`, `3 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def size_text(size: float) -> str:
    """Return bytes in the unit that gives one to three digits: `812 B`, `4.1 kB`, `37 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if size >= 99.5 or unit == "B" else f"{size:.2g} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 sandbox`, `2 sandboxes`, `0 snapshots`."""
    suffix = "" if count == 1 else "es" if noun.endswith(("x", "s", "ch")) else "s"
    return f"{count} {noun}{suffix}"


def next_lines(*commands: str) -> str:
    """Return the commands that may follow, one a line: `Next: finqa report runs/x`."""
    return "\n".join(f"{'      ' if number else 'Next: '}{command}" for number, command in enumerate(commands))


def _escaped(document: str) -> str:
    """Escape the characters of a JSON document that could control a terminal or cannot be encoded."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else mask_text(printable(" ".join(str(value).split())))


@contextmanager
def progress(*, as_json: bool = False, quiet: bool = False) -> Iterator[Reporter]:
    """Yield the reporter that fits stderr: none, bars on a terminal, or plain lines; close it at the end."""
    if as_json or quiet:
        yield NullReporter()
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI"):
        with BarReporter() as bars:
            yield bars
    else:
        yield PlainReporter()


def describe(fields: dict[str, object]) -> str:
    """Return short numbers with their names: `reward=0.412 groups=12`."""
    return " ".join(f"{name}={_short(value)}" for name, value in fields.items())


@dataclass(slots=True)
class _Phase:
    total: int | None
    started: float
    shown: float
    patience: float
    done: int = 0
    fields: dict[str, object] = field(default_factory=dict)
    last_line: str = ""
    timer: threading.Timer | None = None
    """Announces the phase if it has not ended by then."""

    def ends(self) -> None:
        """Do not announce the phase any more."""
        if self.timer is not None:
            self.timer.cancel()


_OF_EPISODES = ("eval", "preflight", "rollout", "sample")
"""Phases that count episodes."""


class PlainReporter(Reporter):
    """Lines without control characters, for logs and pipes: at most one per phase every few seconds.

    A phase that takes longer than a moment has a first line before its first step, so that no wait is silent. What
    was announced before, in another iteration, is only announced again if it takes long.
    """

    def __init__(self) -> None:
        self._phases: dict[str, _Phase] = {}
        self._works: dict[Work, _Phase] = {}
        self._announced: set[str] = set()
        self._mask = Masker()

    def line(self, text: str) -> None:
        """Print a line at once, with secrets masked, in one write, because timers print too."""
        print(f"{legible(self._mask(text))}\n", end="", file=sys.stderr, flush=True)

    def start(self, phase: str, total: int | None, *, own_lines: bool = False) -> None:
        """Announce the phase after a moment; a shorter one prints only its end, one with lines of its own nothing."""
        if own_lines:
            return
        self.drop(phase)
        state = self._begin(phase, total, lambda: f"{phase}: {_count(phase, state)} ...")
        self._phases[phase] = state

    def advance(self, phase: str, done: int, **fields: object) -> None:
        """Print when the last line of this phase is old enough."""
        if (state := self._phases.get(phase)) is None:
            return
        state.done, state.fields = done, fields
        now = time.monotonic()
        if now - state.shown >= SECONDS_BETWEEN_LINES:
            state.shown = now
            self._show(phase, state, now)

    def finish(self, phase: str) -> None:
        """Print the last state with the time that it took, unless it is the last line already."""
        if state := self._phases.pop(phase, None):
            state.ends()
            self._show(phase, state, time.monotonic())

    def drop(self, phase: str) -> None:
        """Forget a phase without printing its end."""
        if state := self._phases.pop(phase, None):
            state.ends()

    def start_work(self, work: Work) -> None:
        """Announce the work after a moment."""
        self._works[work] = self._begin(work.text, None, lambda: f"{work.text} ...")

    def advance_work(self, done: int, total: int) -> None:
        """Print when the last line of this work is old enough."""
        work = self.newest_that_yields()
        if work is None or (state := self._works.get(work)) is None:
            return
        now = time.monotonic()
        if now - state.shown >= SECONDS_BETWEEN_LINES:
            state.shown = now
            self.line(f"{work.text}: {done}/{total} in {now - state.started:.0f} s")

    def end_work(self, work: Work) -> None:
        """Print how long the work took, if it was announced."""
        state = self._works.pop(work)
        state.ends()
        if (seconds := time.monotonic() - state.started) >= state.patience:
            self.line(f"{work.text}: {seconds:.0f} s" if seconds >= 1 else f"{work.text}: {seconds:.1f} s")

    def _begin(self, name: str, total: int | None, text: Callable[[], str]) -> _Phase:
        kind = re.sub(r"\d+", "", name)
        patience = SECONDS_BETWEEN_LINES if kind in self._announced else ANNOUNCED_AFTER_S

        def announce() -> None:
            self._announced.add(kind)
            self.line(text())

        now = time.monotonic()
        return _Phase(total=total, started=now, shown=now, patience=patience, timer=call_later(patience, announce))

    def _show(self, phase: str, state: _Phase, now: float) -> None:
        count = _count(phase, state)
        text = f"{count} {describe(state.fields)}"
        if text != state.last_line:
            state.last_line = text
            self.line(f"{phase}: {count} in {now - state.started:.0f} s {describe(state.fields)}".rstrip())


def _count(phase: str, state: _Phase) -> str:
    count = f"{state.done}/{state.total}" if state.total else str(state.done)
    return f"{count} episodes" if phase.split()[0] in _OF_EPISODES else count


class BarReporter(Reporter):
    """Rich bars on stderr. Use as a context manager: leaving it restores the cursor."""

    live = True

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bars: Progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[details]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._works: dict[Work, TaskID] = {}
        self._mask = Masker()

    def __enter__(self) -> BarReporter:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def line(self, text: str) -> None:
        """Print a line above the bars, with secrets masked."""
        self._bars.console.print(legible(self._mask(text)), markup=False, highlight=False, soft_wrap=True)

    def start(self, phase: str, total: int | None, *, own_lines: bool = False) -> None:
        """Show a bar; it replaces an unfinished bar of the same phase."""
        self.finish(phase)
        self._tasks[phase] = self._bars.add_task(phase, total=total, details="")

    def advance(self, phase: str, done: int, **fields: object) -> None:
        """Move the bar."""
        if (task := self._tasks.get(phase)) is not None:
            self._bars.update(task, completed=done, details=describe(fields))

    def finish(self, phase: str) -> None:
        """Remove the bar."""
        self.drop(phase)

    def drop(self, phase: str) -> None:
        """Remove the bar."""
        if (task := self._tasks.pop(phase, None)) is not None:
            self._bars.remove_task(task)

    def start_work(self, work: Work) -> None:
        """Show a bar without a length."""
        self._works[work] = self._bars.add_task(work.text, total=None, details="")

    def advance_work(self, done: int, total: int) -> None:
        """Move the bar of the newest work that yields, now that its length is known."""
        work = self.newest_that_yields()
        if work is not None and (task := self._works.get(work)) is not None:
            self._bars.update(task, completed=done, total=total)

    def end_work(self, work: Work) -> None:
        """Remove the bar."""
        self._bars.remove_task(self._works.pop(work))


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else legible(str(value), 200)
