"""Compiles a data set into the folder that an environment server reads. The same data gives the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from finqa_cli.data.dataset import DataSet, Question
from finqa_cli.data.snapshots.table_info import storage, table_info
from finqa_cli.errors import DataError

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

    `tables.sqlite` holds `catalog(company, table_name, physical, info)`, where `physical` names the table with the
    rows and `info` is the answer of get_table_info. The truth is in a file of its own that no SQL connection opens.

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
    }
    contents[MANIFEST] = (json.dumps(manifest, indent=2) + "\n").encode()
    for name, data in contents.items():
        write_durably(folder / name, data)
    return digest


def manifest_digest(files: Mapping[str, str]) -> str:
    """The digest of a snapshot from the sha256 of its files, in the order of their names."""
    text = "".join(f"{name} {digest}\n" for name, digest in sorted(files.items()))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def file_digest(path: Path) -> str:
    """sha256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_durably(path: Path, data: bytes) -> None:
    """Writes a file beside its place, flushes it to the disk and renames it.

    Raises:
        OSError: Writing failed; the old file, if any, is untouched.
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
            columns = [storage(table, place) for place in range(len(table.columns))]
            named = zip(table.columns, columns, strict=True)
            declared = ", ".join(f"{_quote(name)} {kind}" for name, (kind, _) in named)
            marks = ", ".join("?" for _ in columns)
            try:
                connection.execute(f"CREATE TABLE t{number} ({declared})")
                rows = zip(*(cells for _, cells in columns), strict=True)
                connection.executemany(f"INSERT INTO t{number} VALUES ({marks})", rows)
            except sqlite3.Error as error:
                raise DataError(f"The table {table.company}/{table.name} cannot be stored: {error}.") from error
            entry = (table.company, table.name, f"t{number}", table_info(table))
            connection.execute("INSERT INTO catalog VALUES (?, ?, ?, ?)", entry)
        connection.commit()
        return connection.serialize()


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


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
