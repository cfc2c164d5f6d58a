"""What a reader hands on: the content of one table, and the budget of cells and characters that all formats share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.own_tables.table_region import Grid

MAX_ROWS = 1_000_000
MAX_CELLS = 10_000_000
MAX_CHARACTERS = 2**28


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One table as a file has it: a grid in which tables are still to be found, or a table with a known header.

    Attributes:
        name: Name of the table inside the file; empty for a file with one table.
        grid: The cells of a sheet, CSV file or HTML table; None if header and rows are known.
        header: Names of the columns.
        rows: Pairs of row number and [C] cells.
        changes: Pairs of what was changed, and an example.
    """

    name: str
    grid: Grid | None = None
    header: tuple[str, ...] = ()
    rows: Sequence[tuple[int, Sequence[object]]] = ()
    changes: tuple[tuple[str, str], ...] = ()


class Budget:
    """Counts rows, cells and characters of a table while it is read, so that no file can exhaust the memory.

    A few kB of Parquet, Excel or SQLite can describe a terabyte.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._rows = self._cells = self._characters = 0

    def spend(self, cells: Sequence[object]) -> None:
        """Counts one row.

        Raises:
            ProblemError: The table is too large.
        """
        self._rows += 1
        self._cells += len(cells)
        self._characters += sum(len(cell) for cell in cells if isinstance(cell, str | bytes))
        for count, most, what in (
            (self._rows, MAX_ROWS, "rows"),
            (self._cells, MAX_CELLS, "cells"),
            (self._characters, MAX_CHARACTERS, "characters"),
        ):
            if count > most:
                raise ProblemError(Problem(file=self._file, reason=f"has more than {most} {what}"))
