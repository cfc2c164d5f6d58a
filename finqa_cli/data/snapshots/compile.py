"""Compiles a data set into the folder that an environment server reads. The same data gives the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from finqa_cli.data.dataset import Cell, DataSet, Question, Table
from finqa_cli.errors import DataError

_NUMBER = re.compile(r"\s*[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?\s*", re.ASCII)
_INTEGER = re.compile(r"\s*[-+]?\d{1,18}\s*", re.ASCII)


def table_info(table: Table) -> str:
    """Returns the answer of get_table_info as one line of JSON: metadata, `column_dtypes`, `unique_vals_per_col`."""
    dtypes: dict[str, str] = {}
    values: dict[str, list[Cell]] = {}
    for place, column in enumerate(table.columns):
        dtypes[column], cells = _as_frame(table, place)
        if place == 0 or not all(_looks_numeric(cell) for cell in cells[1:]):
            values[column] = list(dict.fromkeys(None if cell != cell else cell for cell in cells))
    info = {**table.metadata, "column_dtypes": dtypes, "unique_vals_per_col": values}
    return json.dumps(info, separators=(",", ": "))


def storage(table: Table, place: int) -> tuple[str, Sequence[Cell]]:
    """Returns the declared SQLite type of a column, and its cells as they are stored."""
    dtype, _ = _as_frame(table, place)
    cells = [row[place] for row in table.rows]
    if dtype != "object":
        return ("INTEGER" if dtype == "int64" else "REAL"), cells
    present = [cell for cell in cells if cell is not None]
    if present and all(isinstance(cell, str) and _NUMBER.fullmatch(cell) for cell in present):
        if len(present) == len(cells) and all(_INTEGER.fullmatch(str(cell)) for cell in present):
            return "INTEGER", [int(str(cell)) for cell in present]
        return "REAL", [None if cell is None else float(cell) for cell in cells]
    return "TEXT", cells


def _as_frame(table: Table, place: int) -> tuple[str, list[Cell]]:
    """Returns a column as in a pandas data frame: the name of its dtype, and its cells (missing numbers are NaN)."""
    cells = [row[place] for row in table.rows]
    present = [cell for cell in cells if cell is not None]
    if not present or any(isinstance(cell, str) for cell in present):
        return "object", cells
    if len(present) == len(cells) and all(isinstance(cell, int) for cell in present):
        return "int64", cells
    return "float64", [float("nan") if cell is None else float(cell) for cell in cells]


def _looks_numeric(cell: Cell) -> bool:
    characters = "".join(character for character in str(cell) if character.isalnum())
    return not characters or characters.isnumeric()


SCHEMA_VERSION = 1
TABLES = "tables.sqlite"
TASKS = "tasks.jsonl"
TRUTH = "truth.jsonl"
MANIFEST = "manifest.json"
_CATALOG = (
    "CREATE TABLE catalog (company TEXT, table_name TEXT, physical TEXT, info TEXT, PRIMARY KEY (company, table_name))"
)


def compile_snapshot(dataset: DataSet, folder: Path) -> str:
    """Writes `tables.sqlite`, `tasks.jsonl`, `truth.jsonl` and `manifest.json` into an existing folder.

    `tables.sqlite` contains `catalog(company, table_name, physical, info)`, where `physical` names the table with the
    rows (empty for a table without columns, which SQLite does not support) and `info` is the answer of get_table_info
    under pandas 2. The table `mixed(company, table_name, column_name)` lists columns with both texts and numbers: their
    dtype is `object` in pandas 3, too, while columns of texts only become `str`. It exists only if it has rows.
    The truth is in a separate file that no SQL connection opens.

    Returns:
        The digest, `sha256:<hex>` over the names and digests of the other files.

    Raises:
        DataError: A table cannot be stored (too many columns).
        OSError: Writing failed.
    """
    contents = {
        TABLES: _tables(dataset),
        TASKS: _lines(_public(question) for question in dataset.questions),
        TRUTH: _lines(_truth(question) for question in dataset.questions),
    }
    files = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    digest = manifest_digest(files)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "digest": digest,
        "files": files,
        "companies": len(dataset.companies()),
        "tables": len(dataset.tables),
        "questions": len(dataset.questions),
        "splits": dataset.split_counts(),
        "source": dataset.source,
        "licence": dataset.licence,
        "evaluation_only": dataset.evaluation_only,
        **({"expert": dataset.expert} if dataset.expert else {}),
        **({"grader": dataset.grader} if dataset.grader else {}),
    }
    contents[MANIFEST] = (json.dumps(manifest, indent=2) + "\n").encode()
    for name, data in contents.items():
        write_durably(folder / name, data)
    return digest


def manifest_digest(files: Mapping[str, str]) -> str:
    """Returns the digest of a snapshot from the sha256 of its files, in the order of their names."""
    text = "".join(f"{name} {digest}\n" for name, digest in sorted(files.items()))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def file_digest(path: Path) -> str:
    """Returns sha256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_durably(path: Path, data: bytes) -> None:
    """Writes a file atomically: to a temporary file in the same folder, which is flushed to the disk and renamed.

    Raises:
        OSError: Writing failed; an existing file is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _tables(dataset: DataSet) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(_CATALOG)
        ordered = sorted(dataset.tables, key=lambda table: (table.company, table.name))
        for number, table in enumerate(ordered):
            physical = f"t{number}" if table.columns else ""
            columns = [storage(table, place) for place in range(len(table.columns))]
            named = zip(table.columns, columns, strict=True)
            declared = ", ".join(f"{quote(name)} {kind}" for name, (kind, _) in named)
            marks = ", ".join("?" for _ in columns)
            try:
                if physical:
                    connection.execute(f"CREATE TABLE {physical} ({declared})")
                    rows = zip(*(cells for _, cells in columns), strict=True)
                    connection.executemany(f"INSERT INTO {physical} VALUES ({marks})", rows)
            except sqlite3.Error as error:
                raise DataError(f"The table {table.company}/{table.name} cannot be stored: {error}.") from error
            entry = (table.company, table.name, physical, table_info(table))
            connection.execute("INSERT INTO catalog VALUES (?, ?, ?, ?)", entry)
        if mixed := [(table.company, table.name, name) for table in ordered for name in _mixed_columns(table)]:
            connection.execute("CREATE TABLE mixed (company TEXT, table_name TEXT, column_name TEXT)")
            connection.executemany("INSERT INTO mixed VALUES (?, ?, ?)", mixed)
        connection.commit()
        return connection.serialize()


def _mixed_columns(table: Table) -> list[str]:
    """Returns the names of columns that contain both texts and numbers."""
    return [
        column
        for place, column in enumerate(table.columns)
        if len({isinstance(row[place], str) for row in table.rows if row[place] is not None}) > 1
    ]


def _public(question: Question) -> dict[str, str]:
    return {
        "id": question.id,
        "company": question.company,
        "question": question.question,
        "user_query": question.user_query,
        "split": question.split,
        "type": question.type,
    }


def _truth(question: Question) -> dict[str, str]:
    optional = {
        "table_name": question.table_name,
        "gold_sql": question.gold_sql,
        "explanation": question.explanation,
    }
    return {"id": question.id, "answer": question.answer, **{key: value for key, value in optional.items() if value}}


def _lines(records: Iterable[Mapping[str, str]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def quote(name: str) -> str:
    """Returns a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
