"""Pages of annual reports with their tables, as FinQA and ConvFinQA write them, and the instructions to answer them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from finqa_cli.grading.programs import Value
from finqa_plugins.environments._task_files.task_rows import FieldError, RowFields, checked_text

MAX_BYTES = 2**30
MAX_TEXT = 1_000_000
"""Characters of one field; the longest page of FinQA has nine thousand."""

Table = tuple[tuple[str, ...], ...]
"""[R][C] cells, the header first."""

PROGRAM_INSTRUCTIONS = """\
You are a financial analyst. Answer the question about a page of a company's annual report.

Reply with one JSON object and nothing else: {"answer": <number, "yes" or "no">, "program": "<calculation>"}

The program is a list of steps, separated by a comma and a space. Each step is operation(argument, argument):
- add(a, b), subtract(a, b), multiply(a, b), divide(a, b), exp(a, b) for a to the power of b
- greater(a, b): yes when a is greater than b, else no
- table_sum(row, none), table_average(row, none), table_max(row, none), table_min(row, none): over a row of the table, \
given by the text of its first cell
An argument is a number from the page, a constant such as const_2, const_100, const_1000 or const_m1 (minus one), or \
#0, #1, ... for the result of the first, second, ... step. The last step gives the answer.

Give changes and ratios as decimals: 5.2% is 0.052. Example: {"answer": 0.05085, "program": "subtract(1240, 1180), \
divide(#0, 1180)"}"""


class PageFields(RowFields):
    """Fields of the rows of FinQA and related data sets."""

    def ticker(self) -> str:
        """Return the ticker in the file name `AAL/2018/page_13.pdf`; empty if the row has none."""
        return self.text("filename", optional=True).partition("/")[0].strip()

    def sentences(self, name: str) -> str:
        """Join a list of sentences, or return one text.

        Raises:
            FieldError: It is neither.
        """
        value = self.get(name)
        parts = value if isinstance(value, list) else [value]
        return " ".join(part for each in parts if (part := checked_text(name, each, MAX_TEXT).strip()))

    def table(self, name: str, *, optional: bool = False) -> Table:
        """Return a table; an empty one only if it is optional.

        Raises:
            FieldError: The table is missing, empty or ragged, or a cell is not a text.
        """
        value = self.get(name)
        if not value and optional:
            return ()
        if not isinstance(value, list) or not value or not all(isinstance(row, list) and row for row in value):
            raise FieldError(name, "must be a list of rows that are not empty")
        for place, row in enumerate(value, start=1):
            if len(row) != len(value[0]):
                raise FieldError(name, f"ragged: row {place} has {len(row)} cells, the header has {len(value[0])}")
        return tuple(tuple(checked_text(name, cell, MAX_TEXT) for cell in row) for row in value)

    def truth(self, name: str) -> Value:
        """Return a finite number, which may be written as text, or `yes` or `no`.

        Raises:
            FieldError: It is none of these.
        """
        value = self.get(name)
        if isinstance(value, str):
            word = value.strip().lower()
            if word == "yes":
                return "yes"
            if word == "no":
                return "no"
            value = _number(word)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FieldError(name, "must be a number, yes or no")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise FieldError(name, "must be a finite number")
        return number

    def extra(self) -> dict[str, Any]:
        """Return the mapping `extra_info` of a row; empty if there is none.

        Raises:
            FieldError: It is not an object.
        """
        value = self.get("extra_info")
        if value is not None and not isinstance(value, dict):
            raise FieldError("extra_info", "must be an object")
        return value or {}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def page_text(before: str, table: Sequence[Sequence[str]], after: str) -> str:
    """Return a report page: text, table, text. The table has one line per row, with cells between bars."""
    lines = "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in row)} |" for row in table)
    return "\n\n".join(part for part in (before, f"Table:\n{lines}", after) if part)


def question_text(page: str, question: str) -> str:
    """Return the user message: the page, then the question."""
    return f"Context:\n{page}\n\nQuestion: {question}"
