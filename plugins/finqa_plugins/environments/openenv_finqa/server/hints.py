"""Advice at the end of a reply, for mistakes that SQLite answers with a wrong number or a bare error."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from finqa_plugins.environments.openenv_finqa.server.server_snapshot import TableImage, quoted
from finqa_plugins.environments.openenv_finqa.server.sql_guard import QueryRows

SHOWN = 5
NO_STAR = "name the columns that you need"
SAME_NAMES = "give each column of the result a name of its own with AS"

# Every alternative also matches up to the end of the text, so that no unclosed quote makes the search quadratic.
_QUOTED = re.compile(
    r"""'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z)""", re.S
)
_WORD = re.compile(r"(?<![\w.])\w+(?![\w.])")
_UNKNOWN = re.compile(r'"[^"]+"')  # SQLite names a result column by its text if it is not a column of a table
_TEXT = re.compile(r"'([^']{1,100})'")
_ARITHMETIC = re.compile(
    r"[-+/<>]|[\w)]\s{0,9}\*|\b(?:SUM|AVG|TOTAL|ABS|ROUND|CAST|MIN|MAX)\s{0,9}\(|\bORDER\s{1,9}BY\b", re.I
)
_MISSING = re.compile(r"no such (column|table): (.+)", re.S)
_FIGURE_IN_TEXT = re.compile(r"[($€£\s-]*\d[\d,.]*[)%\s]*")


@dataclass(frozen=True, slots=True)
class VisibleTables:
    """The tables that a query may read, by name, and the name of the table in the call."""

    table: str
    images: Mapping[str, TableImage]

    @property
    def columns(self) -> Sequence[str]:
        """Return the columns of all tables, the named table's first."""
        own = [name for name, _ in self.images[self.table].columns]
        return list(dict.fromkeys([*own, *(name for image in self.images.values() for name, _ in image.columns)]))


def add_hint(reply: str, hint: str) -> str:
    """Return the reply with the hint, if there is one, on a line of its own."""
    return f"{reply}\nHint: {hint}." if hint else reply


def close_names(word: str, names: Iterable[str]) -> list[str]:
    """Return at most five names that look like the word, best first."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word[:100].lower(), by_lower, n=SHOWN, cutoff=0.6)
    return [by_lower[name] for name in close]


def hint_for_names(kind: str, word: str, names: Collection[str]) -> str:
    """Return a hint for a company or table that does not exist."""
    close = close_names(word, names)
    return f"{kind} with a name like that: {', '.join(close)}" if close else ""


def hint_for_missing_filter(image: TableImage) -> str:
    """Return a hint for a query without a condition."""
    column = image.columns[0][0]
    label = str(image.rows[0][0]) if image.rows else ""
    return f"add a condition such as WHERE {quoted(column)} = {_literal(label)}"


def hint_for_error(reason: str, seen: VisibleTables) -> str:
    """Return a hint for a column or table that SQLite does not find."""
    missing = _MISSING.match(reason)
    if missing is None:
        return ""
    if missing[1] == "table":
        return f"a query can read {_listed(close_names(missing[2], seen.images) or [seen.table])}"
    word = missing[2].rpartition(".")[2]
    if close := close_names(word, seen.columns):
        return f"columns with a name like that: {_listed(close)}"
    return f"the columns of {quoted(seen.table)} are {_listed(seen.columns)}"


def hint_for_rows(query: str, found: QueryRows, read: Collection[tuple[str, str]], seen: VisibleTables) -> str:
    """Return a hint for the first probable mistake in a query that runs; empty if there is none."""
    bare = _QUOTED.sub(" ", query)
    numbers = [word for word in _WORD.findall(bare) if word.isdecimal() and word in seen.columns]
    if numbers:
        return f"{numbers[0]} without quotes is the number {numbers[0]}; the column is {quoted(numbers[0])}"
    for column in found.columns:
        if _UNKNOWN.fullmatch(column):
            close = close_names(column[1:-1], seen.columns) or seen.columns
            return f"{column[:100]} is no column, so it was taken as text; columns are {_listed(close)}"
    if not found.rows:
        return _hint_for_no_rows(query, seen)
    if _ARITHMETIC.search(bare) and "REPLACE" not in bare.upper():
        return _hint_for_figures_in_text(read, seen)
    return ""


def _hint_for_no_rows(query: str, seen: VisibleTables) -> str:
    cells = {cell for image in seen.images.values() for row in image.rows for cell in row if isinstance(cell, str)}
    for text in _TEXT.findall(query):
        if text not in cells and (close := close_names(text.strip("%"), cells)):
            return f"no row matches; no cell is {_literal(text)}, but there is {', '.join(map(_literal, close))}"
    return "no row matches"


def _hint_for_figures_in_text(read: Collection[tuple[str, str]], seen: VisibleTables) -> str:
    for name, image in seen.images.items():
        for place, (column, _) in enumerate(image.columns):
            if (name, column) not in read:
                continue
            for row in image.rows:
                cell = row[place]
                if isinstance(cell, str) and not _plain(cell) and _FIGURE_IN_TEXT.fullmatch(cell[:100]):
                    return (
                        f"cells of {quoted(column)} such as {_literal(cell)} are text, not numbers: "
                        "remove $ , % and parentheses with REPLACE, then CAST"
                    )
    return ""


def _plain(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _literal(text: str) -> str:
    return "'" + text[:100].replace("'", "''") + "'"


def _listed(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > 2 * SHOWN else ""
    return ", ".join(quoted(name[:100]) for name in names[: 2 * SHOWN]) + more
