"""Runs queries in this process, on guarded connections, and formats the results as replies of the tool.

Error texts are those of OpenEnv's FinQA environment, if it has one for the mistake: `Execution failed on sql '...'` is
how pandas reports errors of SQLite.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Protocol

from finqa_plugins.environments.openenv_finqa.server import hints
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import TableImage
from finqa_plugins.environments.openenv_finqa.server.sql_guard import (
    Cell,
    GuardedConnection,
    OverdueError,
    QueryBudget,
    QueryError,
    QueryRows,
    limit_heap,
)

MAX_ROWS = 200
MAX_BYTES = 16_000
MAX_REASON = 300
MAX_ECHO = 1000
IDLE_TABLES = 320
LONGEST_QUICK_QUERY = 1000

FULL = QueryBudget(steps=10_000_000, seconds=1.0, heap_bytes=32 * 2**20)
"""The largest budget of a query. A product of three tables of 60 rows takes about 2 million steps."""

QUICK = QueryBudget(steps=200_000, seconds=0.005, heap_bytes=FULL.heap_bytes)
"""Budget of a query in a thread that other sessions wait for."""

NO_STAR = "Error: SELECT * is not allowed (too inefficient)"
NO_COLUMNS = 'Error executing query: near ")": syntax error'
"""The error of SQLite for `CREATE TABLE "name" ()`, by which OpenEnv's server loads a table without columns."""

OUT_OF_MEMORY = "Error executing query: out of memory"
NO_FILTER = "Error: Query must include filters (WHERE, HAVING, etc.)"

_SPACES = re.compile(r"[\r\n\t]+")
_FILTER = re.compile(
    r"(?<![\w\[])(?:WHERE|HAVING|IN|EXISTS|ANY|SOME|ALL|LIKE|BETWEEN|IS NULL|IS NOT NULL|CASE|FILTER)(?![\w\]])"
)

# Expanding common table expressions can take a tenth of a second before the first check of steps and time.
_EXPANDED = re.compile(r"\bWITH\b", re.IGNORECASE)

DECIMALS = 10  # pandas' double_precision
_SCALE = 10**DECIMALS
_LARGEST_PLAIN = 1e16 - 1
_SMALLEST_PLAIN = 1e-15

Scope = tuple[str, tuple[str, ...]]
"""A company and its tables that a query may see."""


class TableSource(Protocol):
    """A source of tables: the snapshot, or tables that another process sent."""

    def tables(self, company: str) -> Mapping[str, tuple[str, str]] | None:
        """Return (physical name, info) by table name, or None for an unknown company."""

    def image(self, company: str, table: str) -> TableImage | None:
        """Return the table; None if there is no such table."""


def refusal(query: str) -> str:
    """Return the error for a query that must not be run; empty if it may be run."""
    if "select *" in query.lower():
        return NO_STAR
    return "" if _FILTER.search(_SPACES.sub(" ", query).upper()) else NO_FILTER


class QueryRunner:
    """Runs queries; each takes an idle connection to the tables it may see, or builds one.

    SQLite's heap limit applies to the whole process. So a process that must attribute an exceeded limit to one query
    runs one query at a time and keeps no idle connections.

    Args:
        source: The tables.
        joins: Whether a query sees all tables of its company, not only the one that the call names.
        hints: Whether replies to common mistakes end with a line of advice.
        heap_bytes: Limit of SQLite's memory in this process.
        idle_tables: Largest number of tables in idle connections, which are kept for later queries.
    """

    def __init__(
        self,
        source: TableSource,
        *,
        joins: bool = False,
        hints: bool = False,
        heap_bytes: int = FULL.heap_bytes,
        idle_tables: int = IDLE_TABLES,
    ) -> None:
        limit_heap(heap_bytes)
        self._source = source
        self._joins = joins
        self._hints = hints
        self._max_idle_tables = idle_tables
        self._idle: OrderedDict[Scope, list[GuardedConnection]] = OrderedDict()
        self._idle_tables = 0
        self._lock = Lock()

    def run(self, company: str, table: str, query: str) -> str:
        """Return the reply to a query: rows as JSON, or a text that begins with `Error`. `table` must exist.

        The reply to a query that needs more than the full budget is an error.
        """
        if self.is_empty(company, table):
            return NO_COLUMNS
        try:
            return self._run(company, table, query, FULL)
        except OverdueError as error:
            return f"Error executing query: {error}"
        except MemoryError:
            return OUT_OF_MEMORY

    def attempt(self, company: str, table: str, query: str, budget: QueryBudget) -> str | None:
        """Return the reply of `run`, or None if the query needs more than this budget."""
        if self.is_empty(company, table):
            return NO_COLUMNS
        try:
            return self._run(company, table, query, budget)
        except (OverdueError, MemoryError):
            return None

    def run_quickly(self, company: str, table: str, query: str) -> str | None:
        """Return the reply of `run` if it takes a few milliseconds, else None; for a thread that others wait for.

        Handing a query to another process costs more than most queries.
        """
        if len(query) > LONGEST_QUICK_QUERY or _EXPANDED.search(query):
            return NO_COLUMNS if self.is_empty(company, table) else None
        return self.attempt(company, table, query, QUICK)

    def is_empty(self, company: str, table: str) -> bool:
        """Return whether the table exists and has no columns, so that no query can be run on it."""
        image = self._source.image(company, table)
        return image is not None and not image.columns

    def scope(self, company: str, table: str) -> Scope:
        """Return the tables that a query on this one may see."""
        if not self._joins:
            return company, (table,)
        tables = self._source.tables(company) or {}
        names = [name for name, (physical, _) in tables.items() if physical and not name.lower().startswith("sqlite_")]
        distinct = tuple(
            {name.lower(): name for name in names}.values()
        )  # names of tables are case-insensitive in SQLite
        return company, distinct if table in distinct else (table,)

    def images(self, scope: Scope) -> Mapping[str, TableImage]:
        """Return the tables of a scope by name."""
        company, names = scope
        found = {name: self._source.image(company, name) for name in names}
        return {name: image for name, image in found.items() if image is not None}

    def _run(self, company: str, table: str, query: str, budget: QueryBudget) -> str:
        scope = self.scope(company, table)
        try:
            connection = self._take(scope) or GuardedConnection(self.images(scope))
        except sqlite3.Error as error:
            return f"Error executing query: {_short(str(error))}"
        sound = True
        try:
            return self._answer(connection, scope, table, query, budget)
        except MemoryError:
            sound = False
            raise
        finally:
            if sound:
                self._give_back(scope, connection)
            else:
                connection.close()

    def _answer(self, connection: GuardedConnection, scope: Scope, table: str, query: str, budget: QueryBudget) -> str:
        try:
            found = connection.run(query, max_rows=MAX_ROWS, max_bytes=MAX_BYTES, budget=budget)
            reply = _reply(found)
        except ValueError as error:
            reply = f"Error executing query: {_short(str(error))}"
            return hints.add_hint(reply, hints.SAME_NAMES) if self._hints else reply
        except OverdueError:
            raise
        except QueryError as error:
            reason = _short(str(error))
            if not error.from_sqlite:
                return f"Error executing query: {reason}"
            reply = f"Error executing query: Execution failed on sql '{_short(query, MAX_ECHO)}': {reason}"
            return (
                hints.add_hint(reply, hints.hint_for_error(reason, self._seen(scope, table))) if self._hints else reply
            )
        if not self._hints:
            return reply
        return hints.add_hint(reply, hints.hint_for_rows(query, found, connection.read, self._seen(scope, table)))

    def _seen(self, scope: Scope, table: str) -> hints.VisibleTables:
        company, names = scope
        return hints.VisibleTables(table, self.images((company, (table, *names))))

    def _take(self, scope: Scope) -> GuardedConnection | None:
        with self._lock:
            idle = self._idle.get(scope)
            if not idle:
                return None
            connection = idle.pop()
            self._idle_tables -= connection.table_count
            if not idle:
                del self._idle[scope]
            return connection

    def _give_back(self, scope: Scope, connection: GuardedConnection) -> None:
        with self._lock:
            self._idle.setdefault(scope, []).append(connection)
            self._idle.move_to_end(scope)
            self._idle_tables += connection.table_count
            while self._idle_tables > self._max_idle_tables and self._idle:
                oldest = next(iter(self._idle))
                dropped = self._idle[oldest].pop()
                self._idle_tables -= dropped.table_count
                dropped.close()
                if not self._idle[oldest]:
                    del self._idle[oldest]


def _short(text: str, limit: int = MAX_REASON) -> str:
    return text if len(text) <= limit else text[:limit] + "..."


def _reply(found: QueryRows) -> str:
    records = records_json(found.columns, found.rows)
    size, kept = 2, 0
    for record in records:
        size += len(record) + 1
        if size > MAX_BYTES:
            break
        kept += 1
    text = "[" + ",".join(records[:kept]) + "]"
    if kept == len(records) and found.complete:
        return text
    limit = f"{MAX_ROWS} rows" if kept == MAX_ROWS else f"{MAX_BYTES} bytes"
    return f"{text} (cut after {kept} rows: a reply is at most {limit})"


def records_json(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Write rows as `pandas.DataFrame.to_json(orient="records")` does, without pandas: one JSON object per row.

    A column of numbers that contains a fraction or a NULL becomes a column of doubles, as in a DataFrame: 5 is
    written as `5.0`.

    Raises:
        ValueError: Two columns share a name, or a blob is not UTF-8 text.
    """
    if len(set(columns)) != len(columns):
        raise ValueError("DataFrame columns must be unique for orient='records'.")
    keys = [_string(column) for column in columns]
    doubles = [_is_double([row[place] for row in rows]) for place in range(len(columns))]
    return [_record(keys, doubles, row) for row in rows]


def _record(keys: Sequence[str], doubles: Sequence[bool], row: Sequence[Cell]) -> str:
    cells = zip(keys, doubles, row, strict=True)
    return "{" + ",".join(f"{key}:{_cell(value, double)}" for key, double, value in cells) + "}"


def _is_double(column: Sequence[Cell]) -> bool:
    numbers = [value for value in column if value is not None]
    if not numbers or not all(isinstance(value, int | float) for value in numbers):
        return False
    return len(numbers) < len(column) or any(isinstance(value, float) for value in numbers)


def _cell(value: Cell, double: bool) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return _string(value.decode())
    if isinstance(value, str):
        return _string(value)
    return _double(float(value)) if double or isinstance(value, float) else str(value)


def _string(text: str) -> str:
    parts = (json.dumps(part)[1:-1].replace("/", "\\/") for part in text.split("\x7f"))
    return '"' + "\x7f".join(parts) + '"'  # DEL is the only control character that pandas does not escape


def _double(value: float) -> str:
    if not math.isfinite(value):
        return "null"
    size = abs(value)
    if size > _LARGEST_PLAIN or 0 < size < _SMALLEST_PLAIN:
        return f"{value:.{DECIMALS}g}"
    whole = int(size)
    scaled = (size - whole) * _SCALE
    fraction = int(scaled)
    rest = scaled - fraction
    if rest > 0.5 or (rest == 0.5 and (fraction == 0 or fraction % 2)):
        fraction += 1
    if fraction >= _SCALE:
        whole, fraction = whole + 1, 0
    digits = f"{fraction:0{DECIMALS}d}".rstrip("0") or "0"
    return f"{'-' if value < 0 else ''}{whole}.{digits}"
