"""The compiled data of a snapshot folder, opened once per process. The truth never enters an SQL connection."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_plugins.environments.openenv_finqa.server.server_manifest import SnapshotError, broken, verify

__all__ = ["Question", "Snapshot", "SnapshotError", "TableImage", "quoted"]


@dataclass(frozen=True, slots=True)
class Question:
    """One task with its truth."""

    id: str
    company: str
    user_query: str
    split: str
    answer: str


@dataclass(frozen=True, slots=True)
class TableImage:
    """What it takes to rebuild one table elsewhere: its columns with declared types, and its rows."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]


class Snapshot:
    """Catalogue, tables and questions. Safe to share between threads: tables are read under SQLite's own lock."""

    def __init__(self, folder: Path, *, name: str = "", digest: str = "") -> None:
        """Opens the folder.

        Args:
            folder: Of the snapshot.
            name: Of the snapshot, for messages.
            digest: What the snapshot must be; any when empty.

        Raises:
            SnapshotError: A file is missing, damaged or of another version.
        """
        verify(folder, name=name, digest=digest)
        try:
            self._database = _open_read_only(folder / "tables.sqlite")
            self._catalogue = _read_catalogue(self._database)
            self.questions = {question.id: question for question in _read_questions(folder)}
        except (OSError, sqlite3.Error, ValueError, LookupError, TypeError) as error:
            raise broken(folder, name, f"{type(error).__name__}: {error}") from error
        if not self.questions:
            raise broken(folder, name, "it holds no questions")
        self._images: dict[tuple[str, str], TableImage] = {}

    def companies(self) -> Sequence[str]:
        """Names of all companies, sorted."""
        return tuple(self._catalogue)

    def tables(self, company: str) -> Mapping[str, tuple[str, str]] | None:
        """(physical name, info) by table name, or None for an unknown company."""
        return self._catalogue.get(company)

    def image(self, company: str, table: str) -> TableImage | None:
        """The table, read once and kept; None when there is no such table."""
        key = (company, table)
        if key not in self._images:
            entry = self._catalogue.get(company, {}).get(table)
            if entry is None:
                return None
            self._images[key] = _read_image(self._database, entry[0])
        return self._images[key]

    def choose(self, split: str, seed: str) -> Question:
        """The question that this seed draws; an empty split draws from all.

        Raises:
            LookupError: There is no such split.
        """
        candidates = [question for question in self.questions.values() if split in ("", question.split)]
        if not candidates:
            raise LookupError(f"Unknown split {split[:64]!r}")
        return random.Random(seed).choice(candidates)


def _open_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path.absolute()}?mode=ro&immutable=1", uri=True, check_same_thread=False)


def _read_catalogue(database: sqlite3.Connection) -> dict[str, dict[str, tuple[str, str]]]:
    catalogue: dict[str, dict[str, tuple[str, str]]] = {}
    rows = database.execute("SELECT company, table_name, physical, info FROM catalog ORDER BY company, table_name")
    for company, table, physical, info in rows:
        catalogue.setdefault(company, {})[table] = (physical, info)
    return catalogue


def _read_questions(folder: Path) -> Iterator[Question]:
    truth = {row["id"]: str(row["answer"]) for row in _read_lines(folder / "truth.jsonl")}
    for row in _read_lines(folder / "tasks.jsonl"):
        yield Question(row["id"], row["company"], row["user_query"], row["split"], truth[row["id"]])


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _read_image(database: sqlite3.Connection, physical: str) -> TableImage:
    name = quoted(physical)
    columns = tuple((row[1], row[2]) for row in database.execute(f"PRAGMA table_info({name})"))
    return TableImage(columns, tuple(database.execute(f"SELECT * FROM {name} ORDER BY rowid")))


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
