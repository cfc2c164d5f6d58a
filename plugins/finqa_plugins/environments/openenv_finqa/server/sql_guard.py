"""Limits what a query can do: it reads a private in-memory copy of the tables that it may see, within a budget.

It can reach no file, no other table and no gold answer. Sources: SQLite's "Run-Time Limits", "Compile-Time
Authorization Callbacks" and "Query Progress Callbacks". The progress callback is called at jumps only, never inside a
function call or between the calls of one row; so calls are counted, and functions whose cost grows with the product of
their arguments have their own limits.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

from finqa_plugins.environments.openenv_finqa.server.server_snapshot import TableImage, quoted

Cell = str | int | float | bytes | None

MAX_CELL_BYTES = 10_000
MAX_CALLS = 100
STEPS_PER_CHECK = 500
LONGEST_NEEDLE = 256

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_CELL_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 16,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 1,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
# SQLite's text, number, date, JSON, aggregate and window functions. Left out are functions that have effects, load
# code, report the build, are not deterministic (random, randomblob), or return binary JSON, which no reply can contain.
_FUNCTIONS = frozenset(
    re.findall(
        r"\w+",
        """
    abs char coalesce concat concat_ws format glob hex if ifnull iif instr length like likelihood likely lower ltrim max
    min nullif octet_length printf quote replace round rtrim sign soundex substr substring trim typeof unhex unicode
    unlikely upper zeroblob
    acos acosh asin asinh atan atan2 atanh ceil ceiling cos cosh degrees exp floor ln log log10 log2 mod pi pow power
    radians sin sinh sqrt tan tanh trunc
    current_date current_time current_timestamp date datetime julianday strftime time timediff unixepoch
    avg count group_concat median percentile percentile_cont percentile_disc string_agg sum total
    cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number
    json json_array json_array_insert json_array_length json_error_position json_extract json_group_array
    json_group_object json_insert json_object json_patch json_pretty json_quote json_remove json_replace json_set
    json_type json_valid
    """,
    )
) | {"->", "->>"}

# Pragmas that describe the tables of the connection. None of them can change anything.
_DESCRIPTIONS = frozenset(
    re.findall(
        r"\w+",
        "collation_list foreign_key_list index_info index_list index_xinfo table_info table_list table_xinfo",
    )
)
_VIRTUAL = frozenset(["json_each", "json_tree", *(f"pragma_{name}" for name in _DESCRIPTIONS)])
_READABLE = _VIRTUAL | {"sqlite_master", "sqlite_schema"}
_NAME_OF_VIRTUAL = re.compile("|".join(sorted(_VIRTUAL, reverse=True)))
_WIDE_FORMAT = re.compile(r"\*|\d{3}")


class QueryError(Exception):
    """A query that cannot be answered; `from_sqlite` if SQLite rejected it, with its reason."""

    def __init__(self, message: str, *, from_sqlite: bool = False) -> None:
        super().__init__(message)
        self.from_sqlite = from_sqlite


class OverdueError(QueryError):
    """The query did not end within its budget."""


@dataclass(frozen=True, slots=True)
class QueryBudget:
    """The resources that a query may use.

    The limit of steps comes first for most queries, so that the same query has the same result on every machine,
    however busy. Seconds limit queries in which few steps take long, such as functions over long texts.

    Attributes:
        steps: Operations of SQLite's virtual machine, counted in units of STEPS_PER_CHECK.
        seconds: Processor time, because the load of the machine must not affect a reply.
        heap_bytes: Memory of SQLite in the process that runs the query.
    """

    steps: int
    seconds: float
    heap_bytes: int


@dataclass(frozen=True, slots=True)
class QueryRows:
    """The rows that a query returned; `complete` is False if there were more."""

    columns: Sequence[str]
    rows: Sequence[tuple[Cell, ...]]
    complete: bool


class GuardedConnection:
    """A connection to an in-memory copy of tables. Not thread-safe.

    Attributes:
        read: (table, column) pairs that the last query looked at.
    """

    def __init__(self, tables: Mapping[str, TableImage]) -> None:
        # Cached statements would count against the heap of all connections.
        self._connection = sqlite3.connect(
            ":memory:", check_same_thread=False, isolation_level=None, cached_statements=0
        )
        self._tables = frozenset(name.lower() for name in tables)
        self._virtual: set[str] = set()
        self._calls = 0
        self._refusal = ""
        self._steps = 0
        self._max_steps = 0
        self._seconds = 0.0
        self._deadline = 0.0
        self.read: set[tuple[str, str]] = set()
        self.table_count = len(tables)
        self._connection.execute("PRAGMA temp_store=MEMORY")
        self._connection.execute("BEGIN")
        for name, image in tables.items():
            _copy(self._connection, name, image)
        self._connection.execute("COMMIT")
        self._confine()

    def run(self, query: str, *, max_rows: int, max_bytes: int, budget: QueryBudget) -> QueryRows:
        """Return the first rows of a query: at most `max_rows`, and about `max_bytes` bytes of cells.

        Raises:
            QueryError: SQLite refuses the query.
            OverdueError: The query takes more steps or seconds than its budget.
            MemoryError: The heap limit is reached.
        """
        self._calls = 0
        self._refusal = ""
        self.read.clear()
        self._steps = 0
        self._max_steps = budget.steps
        self._seconds = budget.seconds
        self._deadline = time.thread_time() + budget.seconds
        try:
            self._make_virtual(query)
            cursor = self._connection.execute(query)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self._explained(error, from_sqlite=True) from None
        with closing(cursor):
            if cursor.description is None:
                raise QueryError("only SELECT returns rows")
            try:
                return _fetch(cursor, [column[0] for column in cursor.description], max_rows, max_bytes)
            except sqlite3.Error as error:
                raise self._explained(error, from_sqlite=False) from None

    def close(self) -> None:
        """Frees the memory of the copy."""
        self._connection.close()

    def _explained(self, error: Exception, *, from_sqlite: bool) -> QueryError:
        if self._steps > self._max_steps:
            return OverdueError(f"the query was stopped after {self._max_steps:,} steps")
        if self._late():
            return OverdueError(f"the query took longer than {self._seconds:g} s")
        if self._refusal:
            return QueryError(self._refusal)
        return QueryError(str(error), from_sqlite=from_sqlite)

    def _confine(self) -> None:
        _modules()  # read now: during a query there may be no memory left for this
        for limit, value in _LIMITS.items():
            self._connection.setlimit(limit, value)
        for name, count in (("printf", -1), ("format", -1), ("instr", 2), ("trim", 2), ("ltrim", 2), ("rtrim", 2)):
            self._connection.create_function(name, count, self._limited(name), deterministic=True)
        self._connection.set_authorizer(self._authorize)
        self._connection.set_progress_handler(self._overdue, STEPS_PER_CHECK)

    def _make_virtual(self, query: str) -> None:
        """Have SQLite make the virtual tables that the query names.

        SQLite declares their columns by a CREATE TABLE, once for each connection. The authorizer cannot distinguish it
        from a CREATE TABLE of the query.
        """
        text = query.lower()
        if "json_" not in text and "pragma_" not in text:  # nearly every query, and quicker than the expression
            return
        named = set(_NAME_OF_VIRTUAL.findall(text)) - self._virtual
        if not named:
            return
        self._connection.set_authorizer(None)
        try:
            for name in named:
                self._connection.execute(f"SELECT 1 FROM {name} LIMIT 0").close()
        finally:
            self._connection.set_authorizer(self._authorize)
        self._virtual |= named

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_READ and first is not None:
            # SQLite reports an empty column for an item of FROM of which no column is read. Then `first` is the name in
            # the query, which may be that of a common table expression.
            if self._is_readable(first) or (not second and not _is_virtual(first)):
                self.read.add((first, second or ""))
                return sqlite3.SQLITE_OK
        elif action == sqlite3.SQLITE_FUNCTION and second is not None and second.lower() in _FUNCTIONS:
            self._calls += 1
            if self._calls <= MAX_CALLS:
                return sqlite3.SQLITE_OK
            self._refusal = f"the query calls more than {MAX_CALLS} functions"
        elif action == sqlite3.SQLITE_PRAGMA and first is not None and first.lower() in _DESCRIPTIONS:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_OK if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE) else sqlite3.SQLITE_DENY

    def _is_readable(self, name: str) -> bool:
        return name.lower() in self._tables or name.lower() in _READABLE

    def _overdue(self) -> bool:
        self._steps += STEPS_PER_CHECK
        return self._steps > self._max_steps or self._late()

    def _late(self) -> bool:
        return time.thread_time() > self._deadline

    def _limited(self, name: str) -> Callable[..., Any]:
        """SQLite's own function, but refusing calls that could run for seconds: `%.*c`, wide fields, long needles."""

        def function(*values: Cell) -> Cell:
            if self._late():
                raise TimeoutError
            if name in ("printf", "format"):
                if values and isinstance(values[0], str) and _WIDE_FORMAT.search(values[0]):
                    self._refusal = f"{name}: a field is at most 99 wide"
            elif isinstance(values[1], str | bytes) and len(values[1]) > LONGEST_NEEDLE:
                self._refusal = f"{name}: the second argument is longer than {LONGEST_NEEDLE}"
            if self._refusal:
                raise ValueError(self._refusal)
            places = ", ".join("?" * len(values))
            result: Cell = _plain_connection().execute(f"SELECT {name}({places})", values).fetchone()[0]
            return result

        return function


def limit_heap(heap_bytes: int) -> None:
    """Limit SQLite's memory in this process, for all connections together. A later call can only lower the limit."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA hard_heap_limit={heap_bytes}")


def _is_virtual(name: str) -> bool:
    """Whether a table of this name may exist in every connection, from a module or built into SQLite."""
    return name.lower().startswith(("sqlite_", "pragma_")) or name.lower() in _modules()


@cache
def _modules() -> frozenset[str]:
    with closing(sqlite3.connect(":memory:")) as connection:
        return frozenset(name.lower() for (name,) in connection.execute("PRAGMA module_list"))


def _copy(connection: sqlite3.Connection, name: str, image: TableImage) -> None:
    columns = ", ".join(f"{quoted(column)} {declared}" for column, declared in image.columns)
    connection.execute(f"CREATE TABLE {quoted(name)} ({columns})")
    places = ", ".join("?" * len(image.columns))
    connection.executemany(f"INSERT INTO {quoted(name)} VALUES ({places})", image.rows)


def _fetch(cursor: sqlite3.Cursor, columns: Sequence[str], max_rows: int, max_bytes: int) -> QueryRows:
    """Fetch rows one by one, because 200 rows of 200 cells of 10 kB would be 400 MB before they could be cut."""
    rows: list[tuple[Cell, ...]] = []
    room = max_bytes
    for row in cursor:
        if len(rows) == max_rows or room < 0:
            return QueryRows(columns, rows, complete=False)
        rows.append(row)
        room -= sum(len(cell) if isinstance(cell, str | bytes) else 1 for cell in row)
    return QueryRows(columns, rows, complete=True)


_of_thread = threading.local()


def _plain_connection() -> sqlite3.Connection:
    if not hasattr(_of_thread, "connection"):
        _of_thread.connection = sqlite3.connect(":memory:", cached_statements=16)
    connection: sqlite3.Connection = _of_thread.connection
    return connection
