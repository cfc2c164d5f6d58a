"""Rows of the original FinQA (arXiv 2109.00122): read, checked, and written as one text.

A row contains `id`, `filename` (`TICKER/YEAR/page_N.pdf`), `pre_text`, `post_text`, `table` and `qa` with `question`,
`answer`, `program`, `exe_ans` and `gold_inds`. In flat tables, which have no `qa`, its fields are at the top level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.question_files.field_values import MAX_COLUMNS, name_fault
from finqa_cli.data.question_files.question_rows import read_rows
from finqa_cli.documents import parse_json
from finqa_cli.grading.programs import Value

LICENCE = "MIT, Copyright (c) 2021 Zhiyu Chen"
SOURCE = "FinQA (arXiv 2109.00122)"
_LONGEST_PROGRAM = 4000
_LONGEST_FILENAME = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class FinqaRow:
    """One question on one page of a filing.

    Attributes:
        file: Path of the file that contains the row, as the user wrote it.
        number: Place of the row in the file, counted from 1.
        filename: The page, or empty if the row does not name it.
        table: [R][C] cells, the header first; all rows are equally long.
        answer: Answer of the annotator; often rounded, sometimes empty or at another scale. Not the truth.
        program: The gold program in FinQA's language.
        exe_ans: Result of the gold program: the truth. A number, or `yes` or `no`.
        facts: Keys of the gold facts, `table_<row>` and `text_<sentence>`; empty when unknown.
    """

    file: str
    number: int
    id: str
    filename: str
    pre_text: tuple[str, ...]
    post_text: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    question: str
    answer: str
    program: str
    exe_ans: Value
    facts: tuple[str, ...]

    @property
    def company(self) -> str:
        """The ticker, or empty when the row names no page."""
        return self.filename.partition("/")[0]

    @property
    def truth(self) -> str:
        """`exe_ans` in the form that a grader reads: `Yes`, `No`, `94`, `0.14464`."""
        if isinstance(self.exe_ans, str):
            return self.exe_ans.capitalize()
        return str(int(self.exe_ans)) if self.exe_ans.is_integer() else repr(self.exe_ans)

    @property
    def is_percent(self) -> bool:
        """Whether the annotator answered in percent, so that 100 times the truth is the same answer."""
        return not isinstance(self.exe_ans, str) and "%" in self.answer


def input_text(row: FinqaRow) -> str:
    """Returns the row as one prompt: the text before the table, the table, the text after it, the question."""
    table = "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |" for cells in row.table)
    before, after = (" ".join(filter(None, map(str.strip, part))) for part in (row.pre_text, row.post_text))
    page = "\n\n".join(part for part in (before, f"Table:\n{table}", after) if part)
    return f"Context:\n{page}\n\nQuestion: {row.question}"


def is_finqa(fields: dict[str, object]) -> bool:
    """Returns whether a row looks like a row of FinQA, even if it is malformed."""
    return "qa" in fields or {"program", "exe_ans"} <= fields.keys()


def read_finqa_rows(path: Path) -> Iterator[FinqaRow | Problem]:
    """Yields the rows of a FinQA file, each checked; an id that occurs twice is a problem of the later row.

    Raises:
        ProblemError: The file as a whole is missing or unreadable.
    """
    seen: set[str] = set()
    for item in read_rows(path):
        if isinstance(item, Problem):
            yield item
            continue
        try:
            row = finqa_row(str(path), *item)
            if row.id in seen:
                raise ProblemError(
                    Problem(file=str(path), row=row.number, field="id", reason=f"{row.id!r} occurs twice")
                )
        except ProblemError as error:
            yield error.problem
        else:
            seen.add(row.id)
            yield row


def finqa_row(file: str, number: int, fields: dict[str, object]) -> FinqaRow:
    """Returns one row from its JSON value.

    Raises:
        ProblemError: A field is missing or malformed.
    """
    reader = _FieldReader(file, number, fields)
    return FinqaRow(
        file=file,
        number=number,
        id=reader.text("id"),
        filename=reader.filename(),
        question=reader.text("qa.question"),
        program=reader.program(),
        exe_ans=reader.exe_ans(),
        answer=reader.answer(),
        facts=reader.facts(),
        table=reader.table(),
        pre_text=reader.sentences("pre_text"),
        post_text=reader.sentences("post_text"),
    )


class _FieldReader:
    """Reads the fields of one row; a malformed field is a problem with file, row and field."""

    def __init__(self, file: str, number: int, fields: dict[str, object]) -> None:
        self._file = file
        self._number = number
        self._fields = fields

    def problem(self, field: str, reason: str) -> ProblemError:
        return ProblemError(Problem(file=self._file, row=self._number, field=field, reason=reason))

    def get(self, field: str) -> object:
        name = field.removeprefix("qa.")
        if name == field or "qa" not in self._fields:
            return self._fields.get(name)
        qa = self._fields["qa"]
        return qa.get(name) if isinstance(qa, dict) else None

    def text(self, field: str) -> str:
        value = self.get(field)
        if not isinstance(value, str) or not value.strip():
            raise self.problem(field, "must be a text that is not empty")
        return value.strip()

    def filename(self) -> str:
        """Returns the page. Its length is limited, because its parts become names of companies and tables."""
        if self.get("filename") is None:
            return ""
        value = self.text("filename")
        if len(value) > _LONGEST_FILENAME:
            raise self.problem("filename", f"is longer than {_LONGEST_FILENAME} characters")
        if reason := name_fault(value.partition("/")[0]):
            raise self.problem("filename", f"the company {reason}")
        return value

    def program(self) -> str:
        value = self.text("qa.program")
        if len(value) > _LONGEST_PROGRAM:
            raise self.problem("qa.program", f"is longer than {_LONGEST_PROGRAM} characters")
        return value

    def exe_ans(self) -> Value:
        value = self.get("qa.exe_ans")
        if isinstance(value, str):
            plain = value.strip().lower()
            if plain in ("yes", "no"):
                return "yes" if plain == "yes" else "no"
            try:
                value = float(plain)  # a column of a flat table contains numbers and yes or no as text
            except ValueError:
                value = None
        try:
            number = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.problem("qa.exe_ans", "must be a number, yes or no")
        return number

    def answer(self) -> str:
        value = self.get("qa.answer")
        if value is None:
            return ""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.problem("qa.answer", "must be a text or a number")
        return str(value).strip()

    def facts(self) -> tuple[str, ...]:
        value = self.get("qa.gold_inds")
        if isinstance(value, str):
            try:
                value = parse_json(value)
            except ValueError:
                value = 0
        if value is None:
            return ()
        if not isinstance(value, dict):
            raise self.problem("qa.gold_inds", "must be an object")
        return tuple(key for key, sentence in value.items() if sentence is not None)

    def sentences(self, field: str) -> tuple[str, ...]:
        value = self.get(field)
        sentences = [value] if isinstance(value, str) else [] if value is None else value
        if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
            raise self.problem(field, "must be a list of texts")
        return tuple(sentences)

    def table(self) -> tuple[tuple[str, ...], ...]:
        value = self.get("table")
        if not isinstance(value, list) or not value or not all(isinstance(row, list) and row for row in value):
            raise self.problem("table", "must be a list of rows that are not empty")
        if len(value[0]) > MAX_COLUMNS:
            raise self.problem("table", f"has {len(value[0])} columns, but at most {MAX_COLUMNS} are supported")
        for place, row in enumerate(value, start=1):
            if len(row) != len(value[0]):
                raise self.problem("table", f"ragged: row {place} has {len(row)} cells, the header has {len(value[0])}")
            if not all(isinstance(cell, str) for cell in row):
                raise self.problem("table", f"row {place} contains a cell that is not a text")
        return tuple(tuple(row) for row in value)
