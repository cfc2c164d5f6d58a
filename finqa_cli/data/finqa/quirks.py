"""Oddities of labels and cells that are no errors: what annotators wrote against what their programs yield."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from finqa_cli.data.dataset import Cell
from finqa_cli.data.finqa.finqa_rows import FinqaRow

Disagreement = Literal["rounding", "sign", "scale", "other"]

TOLERANCE = 0.05
"""Relative difference up to which `answer` and `exe_ans` count as the same number."""

_LABEL = re.compile(r"\d[\d,]*\.?\d*|\.\d+")
_NUMBER = re.compile(r"\(?[-+]?\s*\$?\s*\(?\s*[-+]?(?:\d[\d,]*\.?\d*|\.\d+)\s*%?\s*\)?\s*%?")
_REPEATED = re.compile(r"\s*\(\s*\$?\s*[\d,.]*\s*%?\s*\)$")
_LONGEST_NUMBER = 80
_BLANK = re.compile(r"[\s$%()\u2010-\u2015\u2212-]*|n/?[am]\.?|nil|none", re.IGNORECASE)


def disagreement(row: FinqaRow) -> Disagreement | None:
    """How `answer` differs from `exe_ans` by more than 5 %, or None when they agree or cannot be compared.

    An answer with "%" stands for a hundredth. `rounding` means that the difference is less than one in the answer's
    last digit; `sign` and `scale` that the numbers agree but for the sign or a power of ten.
    """
    match = _LABEL.search(row.answer)
    if match is None or isinstance(row.exe_ans, str):
        return None
    digits = match[0].replace(",", "").rstrip(".")
    negative = any(mark in row.answer[: match.start()] for mark in "-(")
    unit = 0.01 if row.is_percent else 1.0
    value, step = float(digits) * unit, unit * 10.0 ** -len(digits.partition(".")[2])
    signed, truth = -value if negative else value, row.exe_ans
    if abs(signed - truth) <= TOLERANCE * abs(truth):
        return None
    if abs(signed - truth) <= step:
        return "rounding"
    if abs(value - abs(truth)) <= TOLERANCE * abs(truth):
        return "sign"
    powers = (10.0**power for power in range(-9, 10) if power)
    return "scale" if any(abs(value * power - abs(truth)) <= 0.01 * abs(truth) for power in powers) else "other"


def odd_cells(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Iterator[tuple[int, str, Cell]]:
    """Cells that should be numbers but are not, as (row from 1, column, cell).

    A column after the first should be numbers when more than half of its cells are; blanks, dashes and `n/a` do not
    count. Currency signs, brackets, percent signs and a number repeated in brackets belong to a number.
    """
    for place, column in enumerate(columns[1:], start=1):
        cells = [(number, row[place]) for number, row in enumerate(rows, start=1) if not _is_blank(row[place])]
        odd = [(number, cell) for number, cell in cells if not _is_number(cell)]
        if 2 * len(odd) < len(cells):
            yield from ((number, column, cell) for number, cell in odd)


def _is_blank(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, str) and _BLANK.fullmatch(cell.strip()) is not None)


def _is_number(cell: Cell) -> bool:
    if not isinstance(cell, str):
        return True
    collapsed = " ".join(cell.split())
    if len(collapsed) > _LONGEST_NUMBER:
        return False
    return any(_NUMBER.fullmatch(text) for text in (collapsed, _REPEATED.sub("", collapsed)))
