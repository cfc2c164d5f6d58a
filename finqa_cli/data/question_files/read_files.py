"""Reads whole files. A file that cannot be read is a problem that names it."""

from __future__ import annotations

import datetime
import decimal
import json
import stat
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.question_files.field_values import repeated
from finqa_cli.errors import MissingDependencyError

MAX_BYTES = 2**30


def require_file(path: Path) -> None:
    """Checks that a path is a regular file of at most MAX_BYTES: reading a pipe could block forever.

    Raises:
        ProblemError: The file is missing, of another type, or too large.
    """
    try:
        facts = path.stat()
    except FileNotFoundError as error:
        raise ProblemError(Problem(file=str(path), reason="the file is missing")) from error
    except (OSError, ValueError) as error:
        raise ProblemError(Problem(file=str(path), reason=f"cannot be read: {_reason(error)}")) from error
    if stat.S_ISDIR(facts.st_mode):
        raise ProblemError(Problem(file=str(path), reason="is a folder, not a file"))
    if not stat.S_ISREG(facts.st_mode):
        raise ProblemError(Problem(file=str(path), reason="is not a plain file"))
    if facts.st_size > MAX_BYTES:
        raise ProblemError(
            Problem(file=str(path), reason=f"has {facts.st_size} bytes, but at most {MAX_BYTES} are supported")
        )


def read_bytes(path: Path) -> bytes:
    """Returns the content of a file.

    Raises:
        ProblemError: It is missing or unreadable.
    """
    require_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise ProblemError(Problem(file=str(path), reason=f"cannot be read: {_reason(error)}")) from error


def read_text(path: Path) -> str:
    """Returns the text of a file, without byte order mark.

    Raises:
        ProblemError: The file is missing, unreadable or not UTF-8.
    """
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = error.object.count(b"\n", 0, error.start) + 1
        raise ProblemError(Problem(file=str(path), row=row, reason="is not valid UTF-8")) from error


def read_json(path: Path) -> object:
    """Returns the JSON value in a file.

    Raises:
        ProblemError: It is missing, unreadable, or not JSON.
    """
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise ProblemError(Problem(file=str(path), reason=str(error))) from error


def parse_json(text: str, *, unique: bool = False) -> object:
    """Returns the JSON value of a text.

    Args:
        text: The JSON document.
        unique: Raise for an object that repeats a key, instead of keeping the last value as Python does.

    Raises:
        ValueError: The text is not JSON; the message states what is wrong and where.
    """
    if not text.strip():
        raise ValueError("is empty")
    try:
        value: object = json.loads(text, object_pairs_hook=_unique if unique else None)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"is not valid JSON: {error.msg} at {place}") from error
    except ValueError as error:  # an integer of more digits than Python converts, or a key that occurs twice
        raise ValueError(f"is not readable JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("is not readable JSON: nested too deeply") from error
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) != len(pairs):
        twice = next(name for place, (name, _) in enumerate(pairs) if name in dict(pairs[:place]))
        raise ValueError(f"an object names the key {twice!r} twice")
    return record


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


_BATCH_ROWS = 256


def parquet_rows(path: Path) -> Iterator[dict[str, object]]:
    """Yields the rows of a Parquet file, with times as ISO text and decimals as numbers.

    Raises:
        ProblemError: It is not a Parquet file, is damaged, or repeats a column name.
        MissingDependencyError: pyarrow is not installed.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        reason = f"Reading {path} needs pyarrow, which is not installed."
        raise MissingDependencyError(reason, remedy="pip install 'finqa[data]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            if twice := repeated(file.schema_arrow.names):
                reason = "the column name occurs twice (ignoring case)"
                raise ProblemError(Problem(file=str(path), field=twice, reason=reason))
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for row in batch.to_pylist():
                    yield {name: _plain(value) for name, value in row.items()}
    except (arrow.ArrowException, OSError, ValueError) as error:
        reason = f"is not readable Parquet: {' '.join(str(error).split())}"
        raise ProblemError(Problem(file=str(path), reason=reason)) from error


def _plain(value: Any) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value
