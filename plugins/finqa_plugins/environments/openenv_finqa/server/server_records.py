"""Rows of a query as `pandas.DataFrame.to_json(orient="records")` writes them, without pandas."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

Cell = str | int | float | bytes | None

DECIMALS = 10  # pandas' double_precision
_SCALE = 10**DECIMALS
_LARGEST_PLAIN = 1e16 - 1
_SMALLEST_PLAIN = 1e-15


def records_json(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """One JSON object per row.

    A column of numbers that holds a fraction or a NULL becomes a column of doubles, as in a DataFrame: 5 reads `5.0`.

    Raises:
        ValueError: Two columns share a name, or a blob is not UTF-8 text.
    """
    if len(set(columns)) != len(columns):
        raise ValueError("DataFrame columns must be unique for orient='records'.")
    keys = [_string(column) for column in columns]
    doubles = [_is_double([row[place] for row in rows]) for place in range(len(columns))]
    return [_record(keys, doubles, row) for row in rows]


def _record(keys: Sequence[str], doubles: Sequence[bool], row: Sequence[Cell]) -> str:
    cells = zip(keys, doubles, row, strict=True)
    return "{" + ",".join(f"{key}:{_cell(value, double)}" for key, double, value in cells) + "}"


def _is_double(column: Sequence[Cell]) -> bool:
    numbers = [value for value in column if value is not None]
    if not numbers or not all(isinstance(value, int | float) for value in numbers):
        return False
    return len(numbers) < len(column) or any(isinstance(value, float) for value in numbers)


def _cell(value: Cell, double: bool) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return _string(value.decode())
    if isinstance(value, str):
        return _string(value)
    return _double(float(value)) if double or isinstance(value, float) else str(value)


def _string(text: str) -> str:
    parts = (json.dumps(part)[1:-1].replace("/", "\\/") for part in text.split("\x7f"))
    return '"' + "\x7f".join(parts) + '"'  # DEL is the one control character that pandas leaves as it is


def _double(value: float) -> str:
    if not math.isfinite(value):
        return "null"
    size = abs(value)
    if size > _LARGEST_PLAIN or 0 < size < _SMALLEST_PLAIN:
        return f"{value:.{DECIMALS}g}"
    whole = int(size)
    scaled = (size - whole) * _SCALE
    fraction = int(scaled)
    rest = scaled - fraction
    if rest > 0.5 or (rest == 0.5 and (fraction == 0 or fraction % 2)):
        fraction += 1
    if fraction >= _SCALE:
        whole, fraction = whole + 1, 0
    digits = f"{fraction:0{DECIMALS}d}".rstrip("0") or "0"
    return f"{'-' if value < 0 else ''}{whole}.{digits}"
