"""Facts about a file of original FinQA: counts, programs, prompt sizes, and quirks of its labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.dataset import Cell
from finqa_cli.data.finqa.finqa_import import operations, question_type
from finqa_cli.data.finqa.finqa_rows import FinqaRow, finqa_row, input_text
from finqa_cli.data.question_files.row_profile import Finding, count_values, finding, repeated_questions, sizes
from finqa_cli.grading.programs import execution_accuracy

Disagreement = Literal["rounding", "sign", "scale", "other"]

TOLERANCE = 0.05
"""Relative difference up to which `answer` and `exe_ans` count as the same number."""

_LABEL = re.compile(r"\d[\d,]*\.?\d*|\.\d+")
_NUMBER = re.compile(r"\(?[-+]?\s*\$?\s*\(?\s*[-+]?(?:\d[\d,]*\.?\d*|\.\d+)\s*%?\s*\)?\s*%?")
_REPEATED = re.compile(r"\s*\(\s*\$?\s*[\d,.]*\s*%?\s*\)$")
_LONGEST_NUMBER = 80
_BLANK = re.compile(r"[\s$%()\u2010-\u2015\u2212-]*|n/?[am]\.?|nil|none", re.IGNORECASE)


def disagreement(row: FinqaRow) -> Disagreement | None:
    """Classifies a difference of more than 5 % between `answer` and `exe_ans`.

    An answer with "%" means a hundredth of its number.

    Returns:
        `rounding`: the difference is at most one unit of the answer's last digit. `sign`, `scale`: the numbers agree
        except for the sign, or for a power of ten (within 1 %). `other`: any other difference. None: they agree, or
        cannot be compared.
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
    """Yields cells that should be numbers but are not, as (row from 1, column, cell).

    A column after the first should be numbers if more than half of its cells are numbers; blanks, dashes and `n/a` do
    not count. A number may have currency signs, brackets, percent signs and a repetition in brackets.
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


_DISAGREEMENTS = {
    "rounding": "answers are rounded by more than 5 % of exe_ans",
    "sign": "answers have a different sign than exe_ans",
    "scale": "answers have a different scale than exe_ans",
    "other": "answers differ from exe_ans by more than 5 % in some other way",
}


class FinqaFacts:
    """Collects facts about rows that are added one by one."""

    def __init__(self, file: str) -> None:
        self.rows = 0
        self.problems: list[Problem] = []
        self._file = file
        self._good: dict[str, FinqaRow] = {}

    def add(self, number: int, fields: dict[str, object]) -> None:
        """Adds one row, good or a problem."""
        self.rows += 1
        try:
            row = finqa_row(self._file, number, fields)
        except ProblemError as error:
            self.problems.append(error.problem)
            return
        if row.id in self._good:
            self.problems.append(Problem(file=self._file, row=number, field="id", reason=f"{row.id!r} occurs twice"))
        else:
            self._good[row.id] = row

    def statistics(self) -> dict[str, Any]:
        """Returns counts and distributions of the good rows."""
        rows = list(self._good.values())
        tables = {(row.filename or row.id, row.table) for row in rows}
        steps = [operations(row.program) for row in rows]
        return {
            "questions": len(rows),
            "companies": len({row.company for row in rows if row.company}),
            "pages": len({row.filename for row in rows if row.filename}),
            "tables": len(tables),
            "cells": sum(len(table) * len(table[0]) for _, table in tables),
            "question_types": count_values(question_type(row.program) or "longer calculation" for row in rows),
            "prompt_characters": sizes(len(input_text(row)) for row in rows),
            "program_steps": {str(count): number for count, number in sorted(_by_length(steps).items())},
            "program_operations": count_values(name for names in steps for name in names),
            "percent_answers": sum(row.is_percent for row in rows),
            "yes_no_answers": sum(isinstance(row.exe_ans, str) for row in rows),
        }

    def findings(self) -> list[Finding]:
        """Returns oddities of the good rows."""
        rows = list(self._good.values())
        differing: dict[str, list[str]] = {kind: [] for kind in _DISAGREEMENTS}
        for row in rows:
            if kind := disagreement(row):
                differing[kind].append(f"{row.id}: answer {row.answer[:40]!r}, exe_ans {row.truth}")
        repeats = repeated_questions((row.id, row.filename or row.id, row.question) for row in rows)
        untrue = [row.id for row in rows if not execution_accuracy(row.program, row.exe_ans, row.table)]
        return [
            *finding("program_truth", "programs do not execute to exe_ans", untrue),
            *finding("empty_answer", "answers are empty", [row.id for row in rows if not row.answer]),
            *(one for kind, text in _DISAGREEMENTS.items() for one in finding(f"answer_{kind}", text, differing[kind])),
            *finding(
                "no_page",
                "rows do not name a page, and therefore no company",
                [row.id for row in rows if not row.filename],
            ),
            *finding("unknown_facts", "rows do not name their gold facts", [row.id for row in rows if not row.facts]),
            *finding("odd_cell", "cells in numeric columns are not numbers", list(_odd_cells(rows))),
            *finding(
                "repeated_question", "questions about a page occur more than once", [", ".join(ids) for ids in repeats]
            ),
        ]


def _odd_cells(rows: list[FinqaRow]) -> Iterator[str]:
    tables = {(row.filename or row.id, row.table): row.id for row in rows}
    for (_, table), identity in tables.items():
        for number, column, cell in odd_cells(table[0], table[1:]):
            yield f"{identity} row {number}, column {column!r}: {cell!r}"


def _by_length(steps: list[list[str]]) -> dict[int, int]:
    lengths = [len(names) for names in steps]
    return {length: lengths.count(length) for length in set(lengths)}
