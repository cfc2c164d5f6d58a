"""What looks wrong in tables, judged by the tables alone: the reader that made them has no part in it. Pure.

The causes come first: a table without a header has wrong columns as a consequence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from finqa_cli.data.dataset import Cell, Table
from finqa_cli.data.own_tables.cell_kinds import is_dated
from finqa_cli.data.own_tables.cell_numbers import IDENTIFIER, LONGEST_NUMBER, is_blank, is_year, read_number

FINDINGS = {
    "no_header": "tables have no names for half of their columns or more: the header was not found (--header-rows)",
    "years_in_rows": "tables have years or dates as cells of their first rows, where the header should be",
    "unnamed_column": "columns have no name of their own",
    "repeated_column": "columns repeat a name, so that an agent cannot tell which is which",
    "unbalanced_bracket": "cells have a bracket without its counterpart, so that a negative number may be cut",
    "text_column": (
        "columns look like numbers and are texts, so that an agent cannot compute with them: write the number alone, "
        "and its unit in the name of the column"
    ),
    "mixed_column": "columns of numbers have some texts, so that SQL compares and sorts the whole column as text",
    "lost_mark": "cells have lost a mark, or their column mixes currencies, units or decimal marks",
}
"""Code -> the finding, in the plural, with what to do."""

_UNNAMED = re.compile(r"column_[0-9]+|unnamed: [0-9]+.*|__index_level_[0-9]+__|[0-9]", re.IGNORECASE)
_REPEATED = re.compile(r"(?P<name>.+)[_.][0-9]{1,2}")
_NUMERIC = re.compile(
    r"[-+($\s]*(?:[A-Z]{1,3}\$?\s)?[-+($]*[0-9](?:[0-9.,' ]*[0-9])?(?P<unit>\s?[^\W\d_]{0,12})"
    r"[\s.)\]%*\u2020\u2021]{0,4}"
)
"""A number in any notation, with a word of a unit behind it."""
_MOST_UNITS = 3
"""Units of a column; more different words are parts of names, such as addresses and codes."""
_CODE = re.compile(r"[0-9]+-?[A-Z]{1,6}(?:/[A-Z])?|[0-9]+(?:st|nd|rd|th)\b.*|[0-9]+[-:/][^0-9].*")
"""Names that begin with a digit, such as the form types `10-K` and `497K`, and `1st quarter`."""
REMARKS = "reading"
"""Key of a table's metadata: lines of its reader about what the cells no longer show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFinding:
    """Something odd in a table.

    Attributes:
        code: One of `FINDINGS`.
        table: `company/table`.
        column: Name of the column; empty for the table as a whole.
        cells: Number of cells.
        example: The first of them.
    """

    code: str
    table: str
    column: str
    cells: int
    example: str

    def __str__(self) -> str:
        more = f" and {self.cells - 1} more cell{'s' * (self.cells != 2)}" if self.cells > 1 else ""
        column = f", column {self.column!r}" if self.column else ""
        return f"{self.table}{column}: {self.example[:120]!r}{more}"


def table_findings(tables: Iterable[Table]) -> list[TableFinding]:
    """Returns all findings, in the order of `FINDINGS`, then of the tables."""
    found = [each for table in tables for each in _of_table(table)]
    order = list(FINDINGS)
    return sorted(found, key=lambda each: order.index(each.code))


def _of_table(table: Table) -> Iterator[TableFinding]:
    name = f"{table.company}/{table.name}"
    unnamed = [column for column in table.columns if _UNNAMED.fullmatch(column)]
    if unnamed and 2 * len(unnamed) >= len(table.columns):
        yield TableFinding(code="no_header", table=name, column="", cells=1, example=", ".join(table.columns))
    else:
        for column in unnamed:
            example = next((str(row[table.columns.index(column)]) for row in table.rows), "")
            yield TableFinding(code="unnamed_column", table=name, column=column, cells=1, example=example)
    for row in table.rows[:2]:
        if _is_header(table, row):
            example = ", ".join(str(cell) for cell in row if cell is not None)
            yield TableFinding(code="years_in_rows", table=name, column="", cells=1, example=example)
            break
    names = {column.casefold() for column in table.columns}
    for column in table.columns:
        copy = _REPEATED.fullmatch(column)
        if copy and copy["name"].casefold() in names:
            yield TableFinding(code="repeated_column", table=name, column=column, cells=1, example=copy["name"])
    first = 1 if len(table.columns) > 1 else 0
    for place, column in list(enumerate(table.columns))[first:]:
        for code, cells in _of_column([row[place] for row in table.rows]):
            yield TableFinding(code=code, table=name, column=column, cells=len(cells), example=cells[0])
    remarks = table.metadata.get(REMARKS)
    for remark in remarks if isinstance(remarks, list) else []:
        yield TableFinding(code="lost_mark", table=name, column="", cells=1, example=str(remark))


def _is_header(table: Table, row: Sequence[Cell]) -> bool:
    """Returns whether a row has only years or dates behind its first cell, and the rows below have other values.

    Numbers such as 2034 behind the name of a line item are amounts.
    """
    if row[0] is not None and any(isinstance(cell, int | float) for cell in row[1:]):
        return False
    filled = [place for place, cell in enumerate(row) if place and cell is not None]
    if len(filled) < 2 or not all(_is_period(row[place]) for place in filled):
        return False
    below = [each[place] for each in table.rows for place in filled if each is not row and each[place] is not None]
    return bool(below) and 2 * sum(map(_is_period, below)) < len(below)


def _is_period(cell: Cell) -> bool:
    text = str(cell).strip()
    return is_year(text) or is_dated(text)


def _of_column(cells: Sequence[Cell]) -> Iterator[tuple[str, list[str]]]:
    filled = [cell for cell in cells if cell is not None and str(cell).strip()]
    texts = [cell.strip() for cell in filled if isinstance(cell, str)]
    if open_ones := [text for text in texts if _is_unbalanced(text)]:
        yield "unbalanced_bracket", open_ones
    if not texts or any(IDENTIFIER.fullmatch(text) for text in texts):
        return
    numbers = len(filled) - len(texts)
    if numbers and 2 * numbers >= len(filled):
        yield "mixed_column", texts
        return
    known = [text for text in texts if not is_blank(text)]
    plain = [text for text in known if _is_plain(text)]
    odd = [text for text in known if not _is_plain(text) and _looks_numeric(text)]
    units = {match["unit"].strip() for text in odd if read_number(text) is None and (match := _NUMERIC.fullmatch(text))}
    if odd and len(units) <= _MOST_UNITS and 2 * (numbers + len(plain) + len(odd)) >= numbers + len(known):
        yield "text_column", odd
    elif plain and len(plain) < len(texts) and 2 * len(plain) >= len(known):
        yield "mixed_column", [text for text in texts if not _is_plain(text)]


def _is_plain(text: str) -> bool:
    """Returns whether SQL reads a text as a number, so that a column of such texts is stored as numbers."""
    return re.fullmatch(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?", text) is not None


def _is_unbalanced(text: str) -> bool:
    if len(text) > LONGEST_NUMBER or not any(character.isdecimal() for character in text):
        return False
    return text.count("(") != text.count(")") or text.count("[") != text.count("]")


def _looks_numeric(text: str) -> bool:
    if len(text) > LONGEST_NUMBER or is_dated(text) or _CODE.fullmatch(text):
        return False
    return read_number(text) is not None or read_number(text, ",") is not None or bool(_NUMERIC.fullmatch(text))
