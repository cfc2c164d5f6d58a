"""What commands print: results on stdout, as one JSON document or as text, and progress on stderr."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from finqa_cli.masking import Masker, mask_text
from finqa_cli.runs.reporter import NullReporter, Reporter

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SECONDS_BETWEEN_LINES = 5.0

_KEPT = "\n\t\u200c\u200d"
_UNSAFE_IN_JSON = re.compile(r"[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that JSON lets stand as they are: control characters, marks of direction, halves of pairs."""

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
    """Mask secrets by their form. Names are not looked at: `token` may be the id of one."""
    if isinstance(value, Mapping):
        return {key: _without_secrets(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_secrets(item) for item in value]
    return mask_text(value) if isinstance(value, str) else value


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """Print a table on stdout: by rich on a terminal, aligned plain text elsewhere."""
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _print_rich(headers, rows, title)
    else:
        print("\n".join([*([title] if title else []), plain_table(headers, rows)]), flush=True)


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return columns aligned by spaces; a line break inside a cell becomes a space, so a row stays a line."""
    lines = [[_cell(value) for value in row] for row in [headers, *rows]]
    widths = [max(len(row[column]) for row in lines) for column in range(len(headers))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in lines)


def printable(text: str) -> str:
    """Return a text that cannot drive the terminal: what is neither visible nor a space becomes its Python escape.

    Line breaks and tabs stay, and the joiners of emoji and of scripts that need them.
    """
    return "".join(each if _is_plain(each) else _escape(each) for each in text)


def age_text(seconds: float) -> str:
    """Return a time in its largest unit of which there are two: `90 s`, `45 min`, `30 h`, `3 d`."""
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


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[object]], title: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text as RichText

    table = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(RichText(_cell(value)) for value in row))
    Console(width=shutil.get_terminal_size().columns).print(table)


def _is_plain(character: str) -> bool:
    return character.isprintable() or character in _KEPT or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _escaped(document: str) -> str:
    """Return a JSON document in which what could drive a terminal, or cannot be encoded, is written as its escape."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else mask_text(printable(" ".join(str(value).split())))


@contextmanager
def progress(*, as_json: bool = False, quiet: bool = False) -> Iterator[Reporter]:
    """Yield the reporter for where stderr goes; it is open for as long as the work lasts."""
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
    done: int = 0
    fields: dict[str, object] = field(default_factory=dict)
    last_line: str = ""


class PlainReporter(Reporter):
    """Lines without control characters, for logs and pipes: at most one per phase every few seconds."""

    def __init__(self) -> None:
        self._phases: dict[str, _Phase] = {}
        self._mask = Masker()

    def line(self, text: str) -> None:
        """Print it at once, without secrets."""
        print(self._mask(text), file=sys.stderr, flush=True)

    def start(self, phase: str, total: int | None) -> None:
        """Note the time; short phases print only their end."""
        now = time.monotonic()
        self._phases[phase] = _Phase(total=total, started=now, shown=now)

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
            self._show(phase, state, time.monotonic())

    def drop(self, phase: str) -> None:
        """Forget it."""
        self._phases.pop(phase, None)

    def _show(self, phase: str, state: _Phase, now: float) -> None:
        count = f"{state.done}/{state.total}" if state.total else str(state.done)
        text = f"{count} {describe(state.fields)}"
        if text != state.last_line:
            state.last_line = text
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
        self._mask = Masker()

    def __enter__(self) -> BarReporter:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def line(self, text: str) -> None:
        """Print above the bars, without secrets."""
        self._bars.console.print(self._mask(text), markup=False, highlight=False, soft_wrap=True)

    def start(self, phase: str, total: int | None) -> None:
        """Show a bar, in the place of an unfinished one of the same name."""
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


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
