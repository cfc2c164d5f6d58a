"""Gold SQL of a user's questions: run it on their tables, and derive it from FinQA programs."""

from __future__ import annotations

import decimal
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

from finqa_cli.data.dataset import Cell, Table
from finqa_cli.data.question_files.field_values import MAX_TEXT
from finqa_cli.data.snapshots.compile import quote, storage
from finqa_cli.grading.programs import Program, Reference, Step, Value
from finqa_cli.grading.programs.execute import number

DEADLINE_S = 2.0
_STEPS_PER_CHECK = 1000
_NO_COLUMN = "no such column"
_QUOTED = re.compile(
    r"""'(?:[^']|'')*'|"(?P<name>(?:[^"]|"")*)"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)""", re.DOTALL
)
"""What SQL has in quotes, and its comments."""
_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_NOT_CALLED = frozenset({"load_extension", "readfile", "writefile", "fts3_tokenizer", "random", "randomblob"})
_ARITHMETIC = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_OF_ROWS = {"table_max": "MAX", "table_min": "MIN"}


class GoldQueryError(ValueError):
    """A gold query does not run, does not return exactly one value, or cannot be written for a program."""


def run_gold_query(tables: Sequence[Table], query: str) -> Cell:
    """Returns the one value that a query returns on copies of tables.

    The query can read these tables and nothing else, for at most DEADLINE_S seconds.

    Raises:
        GoldQueryError: The query does not run, takes too long, or does not return one row of one column.
    """
    with _copies(tables) as database:
        try:
            rows = database.execute(query).fetchmany(2)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            hint = f" ({_columns(tables)})" if _NO_COLUMN in str(error) else ""
            raise GoldQueryError(f"does not run: {error}{hint}") from error
    if len(rows) != 1 or len(rows[0]) != 1:
        what = "no row" if not rows else "several rows" if len(rows) > 1 else f"{len(rows[0])} columns"
        raise GoldQueryError(f"must return one value, but returns {what}")
    value: Cell = rows[0][0]
    if value is None or isinstance(value, bytes):
        raise GoldQueryError("yields no value")
    return value


def find_missing_column(tables: Sequence[Table], query: str) -> str:
    """Returns why a query that runs may not do what is meant; empty where all its names are columns.

    SQLite reads a name in double quotes that is no column as a text (sqlite.org/quirks.html, 8), so that
    `SELECT "2025"` returns '2025'. It never does so with names in backticks. Names that are the text of a cell are
    meant as texts.
    """
    cells = {cell for table in tables for row in table.rows for cell in row if isinstance(cell, str)}
    texts: set[str] = set()

    def quoted(found: re.Match[str]) -> str:
        if found["name"] is None:
            return found[0]
        name = found["name"].replace('""', '"')
        return _literal(name) if name in texts else "`" + name.replace("`", "``") + "`"

    with _copies(tables) as database:
        while True:
            try:
                database.execute(_QUOTED.sub(quoted, query))
            except sqlite3.Error as error:
                reason, _, name = str(error).partition(f"{_NO_COLUMN}: ")
                if reason or not name:
                    return ""
                if name not in cells or name in texts:
                    reason = f'{error} ({_columns(tables)}), so SQLite reads "{name}" as a text'
                    return (
                        f"does not run as meant: {reason}; write columns as they are named, and texts in single quotes"
                    )
                texts.add(name)
            else:
                return ""


@contextmanager
def _copies(tables: Sequence[Table]) -> Iterator[sqlite3.Connection]:
    """Yields a database with copies of tables, which queries can only read, for a limited time."""
    with closing(sqlite3.connect(":memory:")) as database:
        for table in tables:
            _copy(database, table)
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TEXT)
        end = time.monotonic() + DEADLINE_S
        database.set_progress_handler(lambda: time.monotonic() > end, _STEPS_PER_CHECK)
        database.set_authorizer(_authorize)
        yield database


def _columns(tables: Sequence[Table]) -> str:
    return "; ".join(f"{table.name} has: {', '.join(table.columns)[:200]}" for table in tables[:3])


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    allowed = action in _READING and not (action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _NOT_CALLED)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _copy(database: sqlite3.Connection, table: Table) -> None:
    if not table.columns:
        return
    columns = [storage(table, place) for place in range(len(table.columns))]
    declared = ", ".join(f"{quote(name)} {kind}" for name, (kind, _) in zip(table.columns, columns, strict=True))
    try:
        database.execute(f"CREATE TABLE {quote(table.name)} ({declared})")
        marks = ", ".join("?" * len(columns))
        rows = zip(*(cells for _, cells in columns), strict=True)
        database.executemany(f"INSERT INTO {quote(table.name)} VALUES ({marks})", rows)
    except sqlite3.Error as error:
        raise GoldQueryError(f"cannot run on the table {table.name!r}: {error}") from error


def program_query(program: Program, table: Table) -> str:
    """Returns a query that computes the result of a program, with the table's cells in place of its numbers.

    A number that is in the table is read from the first cell that contains it. The result is rounded to 5 decimals, as
    in the evaluation of FinQA.

    Raises:
        GoldQueryError: A step cannot be written in SQL, or no step reads the table.
    """
    writer = _QueryWriter(table)
    results: list[str] = []
    for step in program.steps:
        results.append(writer.expression(step, results))
        if len(results[-1]) > 9000:
            raise GoldQueryError("is too long to be written as one query")
    if not writer.cells:
        raise GoldQueryError("uses no number of the table")
    last = results[-1] if program.steps[-1].operation == "greater" else f"ROUND({results[-1]}, 5)"
    label = quote(table.columns[0])
    first = writer.cells[0]
    return f"SELECT {last} AS value FROM {quote(table.name)} WHERE {label} = {_literal(first)} LIMIT 1"


class _QueryWriter:
    """Writes the steps of a program as expressions over one table; `cells` are the labels of the rows they read."""

    def __init__(self, table: Table) -> None:
        self.cells: list[str] = []
        self._table = table
        self._places: dict[float, tuple[str, str]] = {}
        labels = [str(row[0]) for row in table.rows]
        for row in table.rows:
            if labels.count(str(row[0])) > 1 or not isinstance(row[0], str):
                continue
            for column, cell in list(zip(table.columns, row, strict=True))[1:]:
                if isinstance(cell, int | float):
                    self._places.setdefault(_key(cell), (row[0], column))

    def expression(self, step: Step, results: Sequence[str]) -> str:
        """Returns the SQL expression of a step, given the expressions of the steps before it."""
        if step.reads_table:
            return self._row(step)
        first, second = (self._operand(argument, results) for argument in (step.first, step.second))
        if step.operation == "greater":
            return f"CASE WHEN {first} > {second} THEN 'yes' ELSE 'no' END"
        if step.operation not in _ARITHMETIC:
            raise GoldQueryError(f"{step.operation} cannot be expressed in SQL")
        return f"({first} {_ARITHMETIC[step.operation]} {second})"

    def _operand(self, argument: str | Reference, results: Sequence[str]) -> str:
        if isinstance(argument, Reference):
            return results[argument.step]
        value = number(argument)
        if value is None:
            raise GoldQueryError(f"{argument} is not a number")
        if argument.startswith("const_") or (found := self._find(value)) is None:
            return repr(float(value))
        return found

    def _find(self, value: float) -> str | None:
        """Returns the expression of a cell that contains a number, up to its sign and a factor of 100; else None."""
        for factor, scale in ((1.0, ""), (100.0, " / 100.0"), (0.01, " * 100.0")):
            for sign in (1, -1):
                if place := self._places.get(_key(sign * value * factor)):
                    cell = self._cell(*place)
                    return f"({'-' * (sign < 0)}{cell}{scale})" if scale or sign < 0 else cell
        return None

    def _cell(self, label: str, column: str) -> str:
        self.cells.append(label)
        return (
            f"(SELECT CAST({quote(column)} AS REAL) FROM {quote(self._table.name)} "
            f"WHERE {quote(self._table.columns[0])} = {_literal(label)})"
        )

    def _row(self, step: Step) -> str:
        label = str(step.first)
        row = next((row for row in reversed(self._table.rows) if row[0] == label), None)
        if row is None:
            raise GoldQueryError(f"the table has no row {label!r}")
        columns = [column for column, cell in list(zip(self._table.columns, row, strict=True))[1:] if cell is not None]
        if not columns or any(isinstance(cell, str) for cell in row[1:]):
            raise GoldQueryError(f"the row {label!r} does not contain numbers only")
        self.cells.append(label)
        if step.operation in _OF_ROWS and len(columns) > 1:
            inner = f"{_OF_ROWS[step.operation]}({', '.join(map(quote, columns))})"
        else:
            inner = f"({' + '.join(map(quote, columns))})"
        if step.operation == "table_average":
            inner = f"{inner} / {len(columns)}.0"
        where = f"{quote(self._table.columns[0])} = {_literal(label)}"
        return f"(SELECT 1.0 * {inner} FROM {quote(self._table.name)} WHERE {where})"


def _key(value: float) -> float:
    """Returns a number rounded to 12 significant digits, so that 6.4 / 100 and 0.064 are equal."""
    return float(f"{value:.12g}")


def as_program_table(table: Table) -> list[list[str]]:
    """Returns a table in the form that programs read: the header, then rows of texts without empty cells."""
    rows = [[str(row[0]), *(_text(cell) for cell in row[1:] if cell is not None)] for row in table.rows]
    return [list(table.columns), *rows]


def _text(cell: Cell) -> str:
    return format(decimal.Decimal(repr(cell)), "f") if isinstance(cell, float) else str(cell)


def answer_text(value: Cell | Value) -> str:
    """Returns a value as a gold answer: 688, 0.0508, Yes."""
    if isinstance(value, str):
        return {"yes": "Yes", "no": "No"}.get(value, value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def tables_of_query(query: str, tables: Mapping[str, Table]) -> list[str]:
    """Returns the names of the tables that occur in a query, the longest name first."""
    text = query.casefold()
    return [
        name
        for name in sorted(tables, key=lambda name: (-len(name), name))
        if re.search(rf"(?<!\w){re.escape(name.casefold())}(?!\w)", text)
    ]


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
