"""How commands print results: one JSON document with `--json`, readable text otherwise. Only results go to stdout."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Text = str | Callable[[], str | None]


def emit(result: Mapping[str, Any], *, as_json: bool, text: Text) -> None:
    """Prints a result.

    Args:
        result: The document of `--json`; its keys are part of the product's interface.
        as_json: Whether the user asked for it.
        text: The readable form, or a function that returns it or prints it itself.
    """
    if as_json:
        print(json.dumps(result, indent=2, ensure_ascii=False, default=str), flush=True)
        return
    rendered = text() if callable(text) else text
    if rendered is not None:
        print(rendered, flush=True)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """A table on stdout: by rich on a terminal, aligned plain text elsewhere."""
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _print_rich(headers, rows, title)
    else:
        print("\n".join([*([title] if title else []), plain_table(headers, rows)]), flush=True)


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned by spaces; a line break inside a cell becomes a space, so a row stays a line."""
    lines = [[_cell(value) for value in row] for row in [headers, *rows]]
    widths = [max(len(row[column]) for row in lines) for column in range(len(headers))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in lines)


def plural(count: int, noun: str) -> str:
    """`1 sandbox`, `2 sandboxes`, `0 snapshots`."""
    suffix = "" if count == 1 else "es" if noun.endswith(("x", "s", "ch")) else "s"
    return f"{count} {noun}{suffix}"


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[object]], title: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text as RichText

    table = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(RichText(_cell(value)) for value in row))
    Console(width=shutil.get_terminal_size().columns).print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
