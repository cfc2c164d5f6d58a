"""Facts about a file of original FinQA: counts, programs, prompt sizes, and quirks of its labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.finqa.finqa_cells import operations, question_type
from finqa_cli.data.finqa.finqa_rows import FinqaRow, finqa_row, input_text
from finqa_cli.data.finqa.quirks import disagreement, odd_cells
from finqa_cli.data.question_files.row_profile import Finding, counted, finding, repeated_questions, sizes
from finqa_cli.grading.programs import execution_accuracy

_DISAGREEMENTS = {
    "rounding": "answers are rounded by more than 5 % of exe_ans",
    "sign": "answers have another sign than exe_ans",
    "scale": "answers have another scale than exe_ans",
    "other": "answers differ from exe_ans by more than 5 % in some other way",
}


class FinqaFacts:
    """Takes rows in one by one, and knows about them afterwards."""

    def __init__(self, file: str) -> None:
        self.rows = 0
        self.problems: list[Problem] = []
        self._file = file
        self._good: dict[str, FinqaRow] = {}

    def add(self, number: int, fields: dict[str, object]) -> None:
        """Takes one row in: it is good, or one of the problems."""
        self.rows += 1
        try:
            row = finqa_row(self._file, number, fields)
        except ProblemError as error:
            self.problems.append(error.problem)
            return
        if row.id in self._good:
            self.problems.append(Problem(file=self._file, row=number, field="id", reason=f"{row.id!r} comes twice"))
        else:
            self._good[row.id] = row

    def statistics(self) -> dict[str, Any]:
        """Counts and distributions of the good rows."""
        rows = list(self._good.values())
        tables = {(row.filename or row.id, row.table) for row in rows}
        steps = [operations(row.program) for row in rows]
        return {
            "questions": len(rows),
            "companies": len({row.company for row in rows if row.company}),
            "pages": len({row.filename for row in rows if row.filename}),
            "tables": len(tables),
            "cells": sum(len(table) * len(table[0]) for _, table in tables),
            "question_types": counted(question_type(row.program) or "longer calculation" for row in rows),
            "prompt_characters": sizes(len(input_text(row)) for row in rows),
            "program_steps": {str(count): number for count, number in sorted(_by_length(steps).items())},
            "program_operations": counted(name for names in steps for name in names),
            "percent_answers": sum(row.is_percent for row in rows),
            "yes_no_answers": sum(isinstance(row.exe_ans, str) for row in rows),
        }

    def findings(self) -> list[Finding]:
        """Oddities of the good rows."""
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
            *finding("no_page", "rows name no page, so no company", [row.id for row in rows if not row.filename]),
            *finding("unknown_facts", "rows do not name their gold facts", [row.id for row in rows if not row.facts]),
            *finding("odd_cell", "cells are no numbers in columns of numbers", list(_odd_cells(rows))),
            *finding(
                "repeated_question", "questions are asked more than once of a page", [", ".join(ids) for ids in repeats]
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
