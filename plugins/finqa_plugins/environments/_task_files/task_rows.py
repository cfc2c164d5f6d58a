"""Reads the files in which users bring tasks, and says what is wrong with them: file, row, field and reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from finqa_cli.errors import DataError, MissingDependencyError
from finqa_cli.types.splits import SPLITS

Row = TypeVar("Row")


class Identified(Protocol):
    """A task that has an id."""

    @property
    def id(self) -> str:
        """Unique in its data."""
        ...


IdentifiedRow = TypeVar("IdentifiedRow", bound=Identified)


class RowError(ValueError):
    """What is wrong with a row, a line or a file, in words that follow its place."""


class FieldError(RowError):
    """What is wrong with a field of a row."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"field {name!r}: {reason}")


def check_file(path: Path, max_bytes: int) -> None:
    """Check that a path is a file of a size that can be read.

    Raises:
        RowError: It is not.
    """
    try:
        if not path.exists():
            raise RowError("there is no such file")
        if not path.is_file():  # reading a pipe would wait without end
            raise RowError("is neither a file nor a folder")
        if (size := path.stat().st_size) > max_bytes:
            raise RowError(f"holds {size} bytes, at most {max_bytes} are taken")
    except OSError as error:
        raise RowError(f"cannot be read: {error.strerror or error}") from error


def read_content(path: Path, max_bytes: int) -> bytes:
    """Read a file.

    Raises:
        RowError: It is missing, no file, too large or unreadable.
    """
    check_file(path, max_bytes)
    try:
        return path.read_bytes()
    except OSError as error:
        raise RowError(f"cannot be read: {error.strerror or error}") from error


def json_rows(content: bytes) -> Iterator[tuple[int, object]]:
    """Yield rows with their numbers from 1: the items of a JSON list, or the unparsed lines of a JSONL file.

    Raises:
        RowError: A JSON list is malformed.
    """
    text = content.removeprefix(b"\xef\xbb\xbf")
    if text.lstrip()[:1] == b"[":
        rows = parse_json(text)
        assert isinstance(rows, list), "a JSON text that begins with a bracket is a list"
        yield from enumerate(rows, start=1)
        return
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def parquet_rows(path: Path) -> Iterator[object]:
    """Yield the rows of a Parquet file.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        RowError: The file is damaged.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingDependencyError(
            f"Reading {path} needs pyarrow, which is not installed.", remedy="pip install 'finqa[data]'"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise RowError(f"is not readable Parquet: {' '.join(str(error).split()).rstrip('.')}") from error


def parse_json(content: bytes) -> object:
    """Parse a JSON text.

    Raises:
        RowError: It is not valid.
    """
    try:
        value: object = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise RowError(f"is not valid UTF-8 (line {line})") from error
    except json.JSONDecodeError as error:
        raise RowError(f"is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # an integer of more digits than Python converts; deep nesting
        raise RowError(f"is not readable JSON: {error}") from error
    return value


def checked_text(name: str, value: object, max_characters: int) -> str:
    """Return a field's value if it is a valid text.

    Raises:
        FieldError: It is no text, too long, or not valid Unicode.
    """
    if not isinstance(value, str):
        raise FieldError(name, "must be a text")
    if len(value) > max_characters:
        raise FieldError(name, f"holds {len(value)} characters, at most {max_characters} are taken")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise FieldError(name, "is not valid Unicode: it holds half of a surrogate pair")
    return value


class RowProblems:
    """Collects what is wrong with single rows, which `skip_bad` leaves out with a warning."""

    def __init__(self, *, skip_bad: bool, remedy: str) -> None:
        self._skip_bad = skip_bad
        self._remedy = remedy
        self._found: list[str] = []

    def read(
        self, path: Path, values: Iterable[tuple[int, object]], read_row: Callable[[object, int], Row]
    ) -> list[Row]:
        """Read the good rows of a file; unparsed lines are parsed as JSON first.

        Args:
            path: The file, for messages.
            values: Rows with their numbers.
            read_row: Called with a value and its number; raises RowError.

        Raises:
            DataError: The file as a whole cannot be read.
        """
        rows = []
        try:
            for number, value in values:
                try:
                    rows.append(read_row(parse_json(value) if isinstance(value, bytes) else value, number))
                except RowError as error:
                    self._found.append(f"{path}, row {number}, {error}")
        except RowError as error:
            raise DataError(f"{path}: {error}.", remedy=self._remedy) from error
        return rows

    def finish(self, files: Iterable[Path], *, any_row: bool) -> None:
        """Fail or warn about the collected problems.

        Raises:
            DataError: A row is malformed and bad rows are not to be skipped, or no row is left.
        """
        if self._found and not self._skip_bad:
            more = f" ({len(self._found) - 1} more problems)" if len(self._found) > 1 else ""
            remedy = "--set environment.options.skip_bad=true leaves such rows out"
            raise DataError(f"{self._found[0]}{more}.", remedy=remedy)
        if not any_row:
            first = f": {self._found[0]}" if self._found else ""
            raise DataError(f"{', '.join(map(str, files))}: there is no good row{first}.", remedy=self._remedy)
        if self._found:
            log = structlog.get_logger(__name__)
            log.warning("bad rows left out", count=len(self._found), first=self._found[0])


def divide_by_cluster(
    rows: Sequence[IdentifiedRow], cluster_of: Callable[[IdentifiedRow], str], shares: Mapping[str, float], seed: str
) -> dict[str, tuple[IdentifiedRow, ...]]:
    """Give each split its share of the clusters, at least one while there are enough; the rest is `train`.

    Which cluster falls where depends on the seed and the names alone; rows keep their order, and no split is empty.
    """
    names = {row.id: cluster_of(row) for row in rows}
    clusters = sorted(set(names.values()), key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    split_of: dict[str, str] = {}
    for split, share in shares.items():
        free = [cluster for cluster in clusters if cluster not in split_of]
        count = min(max(1, round(share * len(clusters))), len(free) - 1) if share else 0
        split_of |= dict.fromkeys(free[:count], split)
    found = {split: tuple(row for row in rows if split_of.get(names[row.id], "train") == split) for split in SPLITS}
    return {split: part for split, part in found.items() if part}
