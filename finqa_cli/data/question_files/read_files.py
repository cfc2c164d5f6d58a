"""Reads whole files. A file that cannot be read is a problem that names it."""

from __future__ import annotations

import datetime
import decimal
import stat
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.question_files.field_values import repeated
from finqa_cli.documents import parse_json
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
        value: object = parse_json(text)
        return value
    except ValueError as error:
        raise ProblemError(Problem(file=str(path), reason=str(error))) from error


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


_BATCH_ROWS = 256
_MAX_PARQUET_ROWS = 2_000_000


def parquet_rows(path: Path) -> Iterator[dict[str, object]]:
    """Yields the rows of a Parquet file, with times as ISO text and decimals as numbers.

    Texts that a file stores once for many rows are one object here, too, so that a small file does not become large.

    Raises:
        ProblemError: It is not a Parquet file, is damaged or too large, or repeats a column name.
        MissingDependencyError: pyarrow is not installed.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        reason = f"Reading {path} needs pyarrow, which is not installed."
        raise MissingDependencyError(reason, remedy="pip install 'finqa[data]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            schema, facts = file.schema_arrow, file.metadata
            if twice := repeated(schema.names):
                reason = "the column name occurs twice (ignoring case)"
                raise ProblemError(Problem(file=str(path), field=twice, reason=reason))
            size = sum(facts.row_group(place).total_byte_size for place in range(facts.num_row_groups))
            for count, most, what in ((facts.num_rows, _MAX_PARQUET_ROWS, "rows"), (size, MAX_BYTES, "bytes unpacked")):
                if count > most:
                    reason = f"has {count} {what}, but at most {most} are supported"
                    raise ProblemError(Problem(file=str(path), reason=reason))
            texts = [field.name for field in schema if arrow.types.is_string(field.type)]
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                columns = [_cells(column) for column in batch.columns]
                for row in zip(*columns, strict=True):
                    yield dict(zip(batch.schema.names, row, strict=True))
    except MemoryError as error:
        raise ProblemError(Problem(file=str(path), reason="needs more memory than there is")) from error
    except (arrow.ArrowException, OSError, ValueError) as error:
        reason = f"is not readable Parquet: {' '.join(str(error).split())}"
        raise ProblemError(Problem(file=str(path), reason=reason)) from error


def _cells(column: Any) -> list[object]:
    if not hasattr(column, "dictionary"):
        return [_plain(value) for value in column.to_pylist()]
    texts = [_plain(value) for value in column.dictionary.to_pylist()]
    return [None if index is None else texts[index] for index in column.indices.to_pylist()]


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
