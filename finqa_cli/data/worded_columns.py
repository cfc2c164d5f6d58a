"""Columns of numbers with a unit in every cell, such as `$88.0m`: texts, with which an agent cannot compute. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from finqa_cli.data.dataset import Cell, Table
from finqa_cli.data.own_tables.table_cells import LONGEST_NUMBER, read_number

WORDED_COLUMNS = (
    "columns are numbers with a unit in each cell, which stay texts, so that an agent cannot compute with them: write "
    "the number alone, and its unit in the name of the column"
)
"""The finding, in the plural, with what to do."""

_MONEY = r"(?:[A-Z]{1,3}\s?)?[$€£¥]|[A-Z]{3}\b"
_UNIT = (
    rf"{_MONEY}|%|(?i:k|m|mm|mn|mio|mln|b|bn|mrd|t|tn|trn|x|bps?|pp|thousands?|millions?|billions?|trillions?|crores?"
    r"|lakhs?|dollars?|euros?|pounds?|cents?|percent|pct|times)\b\.?"
)
_WORDED = re.compile(
    rf"(?:(?:{_MONEY})\s?)?[-+(\u2212]{{0,2}}\s?(?:(?:{_MONEY})\s?)?[0-9][0-9.,']{{0,30}}(?:\s?(?:{_UNIT})){{0,3}}\s?\)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordedColumn:
    """A column of numbers with a unit.

    Attributes:
        table: `company/table`.
        column: Name of the column.
        cells: Number of cells with a unit.
        example: The first of them.
    """

    table: str
    column: str
    cells: int
    example: str

    def __str__(self) -> str:
        more = f" and {self.cells - 1} more cell{'s' * (self.cells != 2)}" if self.cells > 1 else ""
        return f"{self.table}, column {self.column!r}: {self.example!r}{more}"


def worded_columns(tables: Iterable[Table]) -> Iterator[WordedColumn]:
    """Yields the columns of texts of which at least half of the cells are numbers, and some have a unit.

    The first of several columns contains the names of the rows. Where at least half of the cells are plain numbers, the
    others count as odd cells of a numeric column instead.
    """
    for table in tables:
        first = 1 if len(table.columns) > 1 else 0
        for place, column in list(enumerate(table.columns))[first:]:
            filled = [row[place] for row in table.rows if row[place] is not None and str(row[place]).strip()]
            numbers = sum(map(_is_number, filled))
            if 2 * numbers >= len(filled):
                continue
            worded = [str(cell) for cell in filled if not _is_number(cell) and _is_worded(str(cell))]
            if worded and 2 * (numbers + len(worded)) >= len(filled):
                name = f"{table.company}/{table.name}"
                yield WordedColumn(table=name, column=column, cells=len(worded), example=worded[0])


def _is_number(cell: Cell) -> bool:
    return not isinstance(cell, str) or read_number(cell.strip()) is not None


def _is_worded(text: str) -> bool:
    return len(text) <= LONGEST_NUMBER and _WORDED.fullmatch(text.strip()) is not None
