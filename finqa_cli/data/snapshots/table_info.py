"""What the tool get_table_info answers for a table, and how its cells are stored.

Both follow the OpenEnv FinQA environment, which reads tables with pandas: type names are pandas 2's; columns whose
cells after the first row are all numbers show no values; a text column that holds only numbers is stored as numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from finqa_cli.data.dataset import Cell, Table

_NUMBER = re.compile(r"\s*[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?\s*", re.ASCII)
_INTEGER = re.compile(r"\s*[-+]?\d{1,18}\s*", re.ASCII)


def table_info(table: Table) -> str:
    """The one-line JSON answer: the metadata, `column_dtypes` and `unique_vals_per_col`."""
    dtypes: dict[str, str] = {}
    values: dict[str, list[Cell]] = {}
    for place, column in enumerate(table.columns):
        dtypes[column], cells = _as_frame(table, place)
        if place == 0 or not all(_looks_numeric(cell) for cell in cells[1:]):
            values[column] = list(dict.fromkeys(None if cell != cell else cell for cell in cells))
    info = {**table.metadata, "column_dtypes": dtypes, "unique_vals_per_col": values}
    return json.dumps(info, separators=(",", ": "))


def storage(table: Table, place: int) -> tuple[str, Sequence[Cell]]:
    """SQLite's declared type of a column, and its cells as they are stored."""
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
    """A column as a pandas data frame holds it: its type name, and its cells (missing numbers are NaN)."""
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
