"""Reads files of tasks that users write, and reports errors in them with file, row, field and reason."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import structlog

from finqa_cli.documents import parse_json
from finqa_cli.errors import DataError, MissingDependencyError
from finqa_cli.types import DataInfo
from finqa_cli.types.splits import SPLITS, split_of_name


class Identified(Protocol):
    """A row that has an id."""

    @property
    def id(self) -> str:
        """The id of its task, unique in the data."""
        ...


Row = TypeVar("Row", bound=Identified)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData(Generic[Row]):
    """All rows of a source, by split, in the order of the splits; no split is empty."""

    info: DataInfo
    rows: Mapping[str, tuple[Row, ...]]


def embedded_data(rows: Mapping[str, tuple[Row, ...]], content: str) -> TaskData[Row]:
    """Return the data of rows that ship with an environment; its digest is that of `content`."""
    digest = hashlib.sha256(content.encode()).hexdigest()
    return TaskData(info=DataInfo(name="embedded", digest=f"sha256:{digest}"), rows=rows)


def group_by_split(rows: Iterable[tuple[str, Row]]) -> dict[str, tuple[Row, ...]]:
    """Group pairs of split and row by split: train, dev and test first, then others by name; no split is empty."""
    found: dict[str, list[Row]] = {}
    for split, row in rows:
        found.setdefault(split, []).append(row)
    order = [*(split for split in SPLITS if split in found), *sorted(found.keys() - set(SPLITS))]
    return {split: tuple(found[split]) for split in order}


class RowError(ValueError):
    """A problem with a row, a line or a file; the message is written to follow the name of its place."""


class FieldError(RowError):
    """A problem with a field of a row."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"field {name!r}: {reason}")


def required_text(row: Mapping[str, Any], name: str) -> str:
    """Return a field that must be a text which is not blank.

    Raises:
        FieldError: The field is missing, blank, not a text, or contains a NUL character.
    """
    value = row.get(name)
    if not isinstance(value, str) or not value.strip() or "\x00" in value:
        raise FieldError(name, "must be a text that is not empty")
    return value


def _check_file(path: Path, max_bytes: int) -> None:
    """Check that a path is a file of at most `max_bytes`.

    Raises:
        RowError: The path is missing, not a file, too large or unreadable.
    """
    try:
        if not path.exists():
            raise RowError("this file does not exist")
        if not path.is_file():  # reading a pipe would never end
            raise RowError("is neither a file nor a folder")
        if (size := path.stat().st_size) > max_bytes:
            raise RowError(f"has {size} bytes, but at most {max_bytes} are supported")
    except OSError as error:
        raise RowError(f"cannot be read: {error.strerror or error}") from error


def read_content(path: Path, max_bytes: int) -> bytes:
    """Read a file.

    Raises:
        RowError: The file is missing, not a file, too large or unreadable.
    """
    _check_file(path, max_bytes)
    try:
        return path.read_bytes()
    except OSError as error:
        raise RowError(f"cannot be read: {error.strerror or error}") from error


def _json_rows(content: bytes) -> Iterator[tuple[int, object]]:
    """Yield rows with their numbers from 1: the items of a JSON list, or the unparsed lines of a JSONL file.

    Raises:
        RowError: A JSON list is malformed.
    """
    text = content.removeprefix(b"\xef\xbb\xbf")
    if text.lstrip()[:1] == b"[":
        rows = _parse_json(text)
        assert isinstance(rows, list), "a JSON text that begins with a bracket is a list"
        yield from enumerate(rows, start=1)
        return
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip():
            yield number, line


_LARGEST_RATIO, _LEAST_BYTES = 100, 2**26
"""A Parquet file may expand to so many times its size, or to so many bytes."""


def _parquet_rows(path: Path) -> Iterator[object]:
    """Yield the rows of a Parquet file as plain values, dates as ISO texts.

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
            left = max(_LEAST_BYTES, _LARGEST_RATIO * path.stat().st_size)
            for batch in file.iter_batches(batch_size=256):
                if (left := left - batch.nbytes) < 0:
                    raise RowError(f"expands to more than {_LARGEST_RATIO} times its size, so it is not read further")
                yield from map(_plain, batch.to_pylist())
    except RowError:
        raise
    except MemoryError as error:
        raise RowError("needs more memory than there is") from error
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise RowError(f"is not readable Parquet: {' '.join(str(error).split()).rstrip('.')}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def _parse_json(content: bytes) -> object:
    """Parse a JSON text.

    Raises:
        RowError: It is not valid JSON.
    """
    try:
        value: object = parse_json(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise RowError(f"is not valid UTF-8 (line {line})") from error
    except ValueError as error:
        raise RowError(str(error)) from error
    return value


def checked_text(name: str, value: object, max_characters: int) -> str:
    """Return a field's value if it is a valid text.

    Raises:
        FieldError: The value is not a text, too long, or not valid Unicode.
    """
    if not isinstance(value, str):
        raise FieldError(name, "must be a text")
    if len(value) > max_characters:
        raise FieldError(name, f"has {len(value)} characters, but at most {max_characters} are supported")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise FieldError(name, "is not valid Unicode: it holds half of a surrogate pair")
    return value


class RowFields:
    """The fields of a row by their dotted names."""

    def __init__(self, row: Mapping[str, Any], max_characters: int) -> None:
        self._row = row
        self._max_characters = max_characters

    def get(self, name: str) -> object:
        """Return the value of a field; None if the row has none."""
        value: object = self._row
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def text(self, name: str, *, optional: bool = False) -> str:
        """Return a text without surrounding whitespace; empty only if it is optional.

        Raises:
            FieldError: The field is missing, empty or not a valid text.
        """
        value = self.get(name)
        if value is None and optional:
            return ""
        text = checked_text(name, value, self._max_characters).strip()
        if not text and not optional:
            raise FieldError(name, "must not be empty")
        return text


class RowReader(Generic[Row]):
    """Reads files of rows, and collects the problems of single rows.

    Args:
        read_row: Called with a value of a file and a name for the row, such as `train-7`; raises RowError.
        max_bytes: Largest file that is read.
        remedy: What to do about a file that cannot be read.
        endings: Allowed file name endings; empty: all.
        id_field: The field that must be unique over all files.
        skip_bad: Whether to skip bad rows with a warning; None if the environment has no such option.

    Attributes:
        remedy: See above.
    """

    def __init__(
        self,
        read_row: Callable[[object, str], Row],
        *,
        max_bytes: int,
        remedy: str,
        endings: Sequence[str] = (),
        id_field: str = "id",
        skip_bad: bool | None = None,
    ) -> None:
        self._read_row = read_row
        self._max_bytes = max_bytes
        self.remedy = remedy
        self._endings = endings
        self._id_field = id_field
        self._skip_bad = skip_bad
        self._ids: set[str] = set()
        self._files: list[Path] = []
        self._problems: list[str] = []

    def read(self, path: Path) -> tuple[list[Row], str]:
        """Return the valid rows of a JSON, JSONL or Parquet file, and the hex sha256 of the file.

        Raises:
            DataError: The file as a whole cannot be read.
            MissingDependencyError: A Parquet file needs pyarrow, which is not installed.
        """
        self._files.append(path)
        rows = []
        try:
            _check_file(path, self._max_bytes)
            if self._endings and path.suffix not in self._endings:
                raise RowError(f"is neither {' nor '.join(self._endings)}")
            parquet = path.suffix == ".parquet"
            content = b"" if parquet else read_content(path, self._max_bytes)
            for number, value in enumerate(_parquet_rows(path), start=1) if parquet else _json_rows(content):
                try:
                    rows.append(self._read(value, f"{path.stem}-{number}"))
                except RowError as error:
                    self._problems.append(f"{path}, row {number}, {error}")
            with path.open("rb") as file:
                return rows, hashlib.file_digest(file, "sha256").hexdigest()
        except (RowError, OSError) as error:
            reason = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
            raise DataError(f"{path}: {reason}.", remedy=self.remedy) from error

    def _read(self, value: object, name: str) -> Row:
        row = self._read_row(_parse_json(value) if isinstance(value, bytes) else value, name)
        if row.id in self._ids:
            raise FieldError(self._id_field, f"{row.id} occurs twice")
        self._ids.add(row.id)
        return row

    def finish(self, *, any_row: bool) -> None:
        """Fail or warn about the collected problems.

        Raises:
            DataError: A row is malformed and bad rows are not to be skipped, or no row is left.
        """
        if self._problems and not self._skip_bad:
            more = f" ({len(self._problems) - 1} more problems)" if len(self._problems) > 1 else ""
            skip = "correct them, or --set environment.options.skip_bad=true, which skips them"
            remedy = self.remedy if self._skip_bad is None or not any_row else skip
            raise DataError(f"{self._problems[0]}{more}.", remedy=remedy)
        if not any_row:
            first = f": {self._problems[0]}" if self._problems else ""
            raise DataError(f"{', '.join(map(str, self._files))}: there is no valid row{first}.", remedy=self.remedy)
        if self._problems:
            log = structlog.get_logger(__name__)
            log.warning("malformed rows skipped", count=len(self._problems), first=self._problems[0])


def files_by_split(
    folder: Path, endings: Sequence[str], *, remedy: str, choose: str, match: str = "", exact_first: bool = False
) -> dict[str, Path]:
    """Return the file of each split in a folder; private test files, which have no answers, are ignored.

    Args:
        folder: The folder.
        endings: File name endings to consider.
        remedy: Remedy if the folder has no such file.
        choose: Remedy if a split has several files.
        match: Text that file names must contain.
        exact_first: Whether a file with just the split's name (dev.json) is preferred to longer names.

    Raises:
        DataError: The folder cannot be read, has no such file, or has several for one split.
    """
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix in endings and match in file.name)
        files = [file for file in files if "private" not in file.stem.split("_")]
    except OSError as error:
        raise DataError(
            f"{folder} cannot be read: {error.strerror or error}.",
            remedy="choose another path, or change its permissions",
        ) from error
    chosen = {}
    for split in SPLITS:
        named = [file for file in files if split_of_name(file) == split]
        found = ([file for file in named if file.stem.isalpha()] if exact_first else []) or named
        if len(found) > 1:
            names = " and ".join(file.name for file in found)
            raise DataError(f"{folder} contains several files of split {split!r}: {names}.", remedy=choose)
        if found:
            chosen[split] = found[0]
    if not chosen:
        part = f" with {match!r} in its name" if match else ""
        raise DataError(f"{folder} contains no train, dev or test file{part} ({', '.join(endings)}).", remedy=remedy)
    return chosen


def divide_by_cluster(
    rows: Sequence[Row], cluster_of: Callable[[Row], str], shares: Mapping[str, float], seed: str
) -> dict[str, tuple[Row, ...]]:
    """Assign each split its share of the clusters, at least one while there are enough; the rest is `train`.

    The split of a cluster depends on the seed and the names of the clusters alone. Rows keep their order, and no split
    is empty.
    """
    names = {row.id: cluster_of(row) for row in rows}
    clusters = sorted(set(names.values()), key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    split_of: dict[str, str] = {}
    for split, share in shares.items():
        free = [cluster for cluster in clusters if cluster not in split_of]
        count = min(max(1, round(share * len(clusters))), len(free) - 1) if share else 0
        split_of |= dict.fromkeys(free[:count], split)
    return group_by_split((split_of.get(names[row.id], "train"), row) for row in rows)
