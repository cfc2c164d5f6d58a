"""Numbers as programs and table cells write them, and the rows that `table_*` operations read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from finqa_cli.grading.programs.program import shown

ProgramTable = Sequence[Sequence[str]]
"""Rows of cells as FinQA writes them, header included; the first cell of a row is its name."""

NUMBER = r"(?:[0-9]+(?:,[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
LITERAL = re.compile(rf"[-+]?{NUMBER}(?: ?%)?|const_(?:m1|{NUMBER})")
"""A number of a program: `5,829`, `-32`, `.450`, `6.9%`, `const_100`, `const_m1`."""


def number(text: str) -> float | None:
    """The value of a literal, None for any other text; infinite where it is too large for a float.

    Commas are dropped, `6.9%` is 0.069, `const_100` is 100 and `const_m1` is -1. The official evaluation takes in
    addition whatever else Python reads as a float: `nan`, `1_000`, digits of other scripts.
    """
    if not LITERAL.fullmatch(text):
        return None
    if text == "const_m1":
        return -1.0
    plain = text.removeprefix("const_").replace(",", "")
    return float(plain[:-1]) / 100 if plain.endswith("%") else float(plain)


def row_numbers(table: ProgramTable, name: str) -> list[float]:
    """The numbers of a row, at least one.

    Of rows with one name the last is read. Of a cell, `$` and what follows an opening bracket are dropped, so that
    `$ -32 ( 32 )` is -32.

    Raises:
        ValueError: With the reason: no such row, no cells, or a cell that is not a number.
    """
    cells = {row[0]: row[1:] for row in table if row}.get(name)
    if cells is None:
        raise ValueError(f"the table has no row {shown(name)}")
    if not cells:
        raise ValueError(f"the row {shown(name)} has no cells")
    numbers = []
    for cell in cells:
        value = number(cell.replace("$", "").split("(")[0].strip())
        if value is None:
            raise ValueError(f"the row {shown(name)} has a cell that is not a number: {shown(cell)}")
        numbers.append(value)
    return numbers
