"""The compiled data of a snapshot folder; it is checked and opened once per process.

The truth never enters an SQL connection. Files and digests are those that `finqa snapshot build` writes.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finqa_cli.types import rebuild_command
from finqa_cli.types.splits import SPLITS

Pandas = Literal[2, 3]

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
FILES = ("tables.sqlite", "tasks.jsonl", "truth.jsonl")


class SnapshotError(Exception):
    """The folder is not a readable snapshot; the message has the reason and the command that builds it again."""


@dataclass(frozen=True, slots=True)
class SnapshotQuestion:
    """One task with its gold answer; `kind` is the type of the question, empty where the data has none."""

    id: str
    company: str
    user_query: str
    split: str
    answer: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class TableImage:
    """The content of one table, for copies: its columns with declared types, and its rows.

    Both are empty for a table without columns.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]


class SnapshotReader:
    """Catalogue, tables and questions. Safe to share between threads: tables are read under SQLite's own lock."""

    def __init__(self, folder: Path, *, name: str = "", digest: str = "") -> None:
        """Open the folder.

        Args:
            folder: Folder of the snapshot.
            name: Name of the snapshot, for messages.
            digest: Digest that the snapshot must have; any when empty.

        Raises:
            SnapshotError: A file is missing, damaged or of another version.
        """
        verify(folder, name=name, digest=digest)
        try:
            self._database = _open_read_only(folder / "tables.sqlite")
            self._catalogue = _read_catalogue(self._database)
            self._mixed = _read_mixed(self._database)
            self.questions = {question.id: question for question in _read_questions(folder)}
        except (OSError, sqlite3.Error, ValueError, LookupError, TypeError) as error:
            raise broken(folder, name, f"{type(error).__name__}: {error}") from error
        if not self.questions:
            raise broken(folder, name, "it holds no questions")
        splits: dict[str, list[SnapshotQuestion]] = {name: [] for name in SPLITS}
        for question in self.questions.values():
            splits.setdefault(question.split, []).append(question)
        self.splits: Mapping[str, Sequence[SnapshotQuestion]] = {
            name: questions for name, questions in splits.items() if questions
        }
        self._images: dict[tuple[str, str], TableImage] = {}

    def companies(self) -> Sequence[str]:
        """Return the names of all companies, sorted."""
        return tuple(self._catalogue)

    def tables(self, company: str) -> Mapping[str, tuple[str, str]] | None:
        """Return (physical name, info) by table name, or None for an unknown company."""
        return self._catalogue.get(company)

    def info(self, company: str, table: str, pandas: Pandas) -> str:
        """Return the reply of get_table_info about a table that exists, as a server with this pandas gives it.

        pandas 3 names the type of a text column `str` instead of `object`, and represents a missing text as NaN.
        """
        info = self._catalogue[company][table][1]
        image = self.image(company, table)
        if pandas == 2 or image is None:
            return info
        document = json.loads(info)
        for place, (column, _) in enumerate(image.columns):
            filled = any(row[place] is not None for row in image.rows)
            if document["column_dtypes"][column] == "object" and filled and (company, table, column) not in self._mixed:
                document["column_dtypes"][column] = "str"
                if column in (values := document["unique_vals_per_col"]):
                    values[column] = [math.nan if value is None else value for value in values[column]]
        return json.dumps(document, separators=(",", ": "))

    def image(self, company: str, table: str) -> TableImage | None:
        """Return the table, which is read once and cached; None if there is no such table."""
        key = (company, table)
        if key not in self._images:
            entry = self._catalogue.get(company, {}).get(table)
            if entry is None:
                return None
            self._images[key] = _read_image(self._database, entry[0])
        return self._images[key]

    def choose(self, split: str, seed: str) -> SnapshotQuestion:
        """Return the question that this seed selects from a split; an empty split means all questions.

        Raises:
            LookupError: There is no such split.
        """
        candidates = self.splits.get(split) if split else list(self.questions.values())
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


def _read_mixed(database: sqlite3.Connection) -> frozenset[tuple[str, str, str]]:
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'mixed'").fetchone():
        return frozenset()
    return frozenset(database.execute("SELECT company, table_name, column_name FROM mixed"))


def _read_questions(folder: Path) -> Iterator[SnapshotQuestion]:
    truth = {row["id"]: str(row["answer"]) for row in _read_lines(folder / "truth.jsonl")}
    for row in _read_lines(folder / "tasks.jsonl"):
        yield SnapshotQuestion(
            row["id"], row["company"], row["user_query"], row["split"], truth[row["id"]], str(row.get("type") or "")
        )


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _read_image(database: sqlite3.Connection, physical: str) -> TableImage:
    if not physical:
        return TableImage((), ())
    name = quoted(physical)
    columns = tuple((row[1], row[2]) for row in database.execute(f"PRAGMA table_info({name})"))
    return TableImage(columns, tuple(database.execute(f"SELECT * FROM {name} ORDER BY rowid")))


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def verify(folder: Path, *, name: str = "", digest: str = "") -> None:
    """Compare every file with its sha256.

    Args:
        folder: Folder of the snapshot.
        name: Name of the snapshot; derived from the folder when empty.
        digest: Digest that the manifest must state; any when empty.

    Raises:
        SnapshotError: A file is missing, damaged or of another version.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version, recorded, files = manifest["schema_version"], manifest["digest"], dict(manifest["files"])
        wrong = [file for file in FILES if _sha256(folder / file) != files[file]]
    except OSError as error:
        raise broken(folder, name, f"{error.filename}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise broken(folder, name, f"{MANIFEST} is damaged ({type(error).__name__}: {error})") from error
    if version != SCHEMA_VERSION:
        raise broken(folder, name, f"its format is {str(version)[:20]!r}, this version of finqa reads {SCHEMA_VERSION}")
    if wrong:
        raise broken(folder, name, f"{', '.join(wrong)}: the sha256 differs from the manifest's")
    if digest and recorded != digest:
        raise broken(folder, name, f"its digest is {str(recorded)[:80]}, not {digest}")


def broken(folder: Path, name: str, reason: str) -> SnapshotError:
    """Return the error that names the snapshot and the command that builds it again."""
    # The store keeps a snapshot as <name>/<first 12 digits of its digest>.
    name = name or (folder.parent.name if re.fullmatch(r"[0-9a-f]{12}", folder.name) else folder.name)
    reason = " ".join(reason.split())
    again = f"Build {name!r} again: {rebuild_command(name)}"
    return SnapshotError(f"{folder} is not a readable snapshot: {reason}. {again}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
