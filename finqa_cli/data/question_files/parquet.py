"""Rows of Parquet files, through pyarrow, which is imported only when one is read."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.question_files.field_values import repeated
from finqa_cli.errors import MissingDependencyError

_BATCH_ROWS = 256


def parquet_rows(path: Path) -> Iterator[dict[str, object]]:
    """The rows, with times as ISO text and decimals as numbers.

    Raises:
        ProblemError: It is no Parquet file, is damaged, or names a column twice.
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
                reason = "the column name comes twice (case is ignored)"
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
