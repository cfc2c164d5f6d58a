"""Guarded SQL: one statement, read only, on one table, with limits on time, memory, rows and bytes.

Every query runs on a private in-memory copy of the one table that it names, so there is no file, no other table and no
truth to reach. The authorizer allows reading that table and calling functions, nothing else.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections import OrderedDict
from contextlib import closing
from threading import Lock

from finqa_plugins.openenv_finqa.server.records import Cell, records_json
from finqa_plugins.openenv_finqa.server.snapshot import Snapshot, TableImage, quoted

DEADLINE_S = 1.0
MAX_ROWS = 200
MAX_BYTES = 16_000
MAX_CELL_BYTES = 20_000  # also bounds what one function call can chew on, which no deadline can interrupt
HEAP_BYTES = 64 * 2**20
IDLE_CONNECTIONS = 128
STEPS_PER_CHECK = 1000

NO_STAR = "Error: SELECT * is not allowed (too inefficient)"
NO_FILTER = "Error: Query must include filters (WHERE, HAVING, etc.)"

_SPACES = re.compile(r"[\r\n\t]+")
_FILTER = re.compile(
    r"(?<![\w\[])(?:WHERE|HAVING|IN|EXISTS|ANY|SOME|ALL|LIKE|BETWEEN|IS NULL|IS NOT NULL|CASE|FILTER)(?![\w\]])"
)
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_CELL_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
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
# Not deterministic, or with effects outside the query.
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "random", "randomblob", "fts3_tokenizer"})
_WIDE_FORMAT = re.compile(r"\*|\d{3}")


def refusal(query: str) -> str:
    """What is wrong with the query before it is run, or nothing."""
    if "select *" in query.lower():
        return NO_STAR
    return "" if _FILTER.search(_SPACES.sub(" ", query).upper()) else NO_FILTER


class QueryRunner:
    """Runs queries from any thread; each takes an idle connection to its table, or builds one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._idle: OrderedDict[tuple[str, str], list[sqlite3.Connection]] = OrderedDict()
        self._idle_count = 0
        self._lock = Lock()

    def run(self, company: str, table: str, query: str) -> str:
        """The reply to a query: rows as JSON, or a text that begins with `Error`."""
        image = self._snapshot.image(company, table)
        if image is None:
            return f"Error: Table file not found for '{company}/{table}'"
        key = (company, table)
        try:
            connection = self._take(key) or _connect(table, image)
        except (sqlite3.Error, MemoryError) as error:
            return f"Error executing query: {error or 'out of memory'}"
        try:
            return _execute(connection, query)
        finally:
            self._give_back(key, connection)

    def _take(self, key: tuple[str, str]) -> sqlite3.Connection | None:
        with self._lock:
            idle = self._idle.get(key)
            if not idle:
                return None
            self._idle_count -= 1
            connection = idle.pop()
            if not idle:
                del self._idle[key]
            return connection

    def _give_back(self, key: tuple[str, str], connection: sqlite3.Connection) -> None:
        with self._lock:
            self._idle.setdefault(key, []).append(connection)
            self._idle.move_to_end(key)
            self._idle_count += 1
            while self._idle_count > IDLE_CONNECTIONS:
                oldest = next(iter(self._idle))
                self._idle[oldest].pop().close()
                self._idle_count -= 1
                if not self._idle[oldest]:
                    del self._idle[oldest]


def _connect(name: str, image: TableImage) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.execute(f"PRAGMA hard_heap_limit={HEAP_BYTES}")
    columns = ", ".join(f"{quoted(column)} {declared}" for column, declared in image.columns)
    connection.execute(f"CREATE TABLE {quoted(name)} ({columns})")
    places = ", ".join("?" * len(image.columns))
    connection.execute("BEGIN")
    connection.executemany(f"INSERT INTO {quoted(name)} VALUES ({places})", image.rows)
    connection.execute("COMMIT")
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    readable = frozenset({name, "sqlite_master", "sqlite_schema"})

    def authorize(action: int, first: str | None, second: str | None, _base: str | None, _view: str | None) -> int:
        if action == sqlite3.SQLITE_SELECT:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ and first in readable:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and second is not None and second.lower() not in _FORBIDDEN_FUNCTIONS:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    for function in ("printf", "format"):
        connection.create_function(function, -1, _printf, deterministic=True)
    connection.set_authorizer(authorize)
    return connection


def _printf(template: Cell = None, *values: Cell) -> Cell:
    """SQLite's own, but `%.*c` and wide fields are refused: one call could run for seconds without a check."""
    if isinstance(template, str) and _WIDE_FORMAT.search(template):
        raise ValueError("field too wide")
    with closing(sqlite3.connect(":memory:")) as clean:
        places = ", ".join("?" * (1 + len(values)))
        text: Cell = clean.execute(f"SELECT printf({places})", (template, *values)).fetchone()[0]
    return text


def _execute(connection: sqlite3.Connection, query: str) -> str:
    deadline = time.monotonic() + DEADLINE_S
    connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_PER_CHECK)
    try:
        cursor = connection.execute(query)
        if cursor.description is None:
            return "Error executing query: only SELECT returns rows"
        columns = [column[0] for column in cursor.description]
        rows = cursor.fetchmany(MAX_ROWS + 1)
        cursor.close()
        return _reply(columns, rows)
    except MemoryError:
        return "Error executing query: out of memory"
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        return f"Error executing query: {_reason(error)}"
    finally:
        connection.set_progress_handler(None, 0)


def _reason(error: Exception) -> str:
    text = str(error)
    if text == "interrupted":
        return f"the query took longer than {DEADLINE_S:g} s"
    return text if len(text) <= 300 else text[:300] + "..."


def _reply(columns: list[str], rows: list[tuple[Cell, ...]]) -> str:
    records = records_json(columns, rows[:MAX_ROWS])
    size, kept = 2, 0
    for record in records:
        size += len(record) + 1
        if size > MAX_BYTES:
            break
        kept += 1
    text = "[" + ",".join(records[:kept]) + "]"
    if kept == len(rows):
        return text
    limit = f"{MAX_ROWS} rows" if kept == MAX_ROWS else f"{MAX_BYTES} bytes"
    return f"{text} (cut after {kept} rows: a reply is at most {limit})"
