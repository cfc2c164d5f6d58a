"""One question with its page and truth, read from a row of original FinQA or of `finqa data prepare`.

Source of the first form: FinQA, arXiv 2109.00122. The truth is `exe_ans`: `answer`, which people typed, differs from it
in scale or sign in a tenth of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finqa_cli.grading.programs import ProgramError, Step, Value, parse
from finqa_cli.types.splits import cluster_of
from finqa_plugins.environments.finqa_text.text_prompt import page_text, question_text

MAX_TEXT = 1_000_000
"""Characters of one field; the longest page of FinQA has nine thousand."""

Table = tuple[tuple[str, ...], ...]
"""[R][C] cells, the header first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question.

    Attributes:
        id: Unique in its data.
        company: Ticker; where the row names no company, the one in its id, or else its page (see `cluster_of`).
        question: Alone, without its page.
        text: The whole user message: page and question.
        truth: What the gold program gives.
        program: The gold program; empty when the data has none.
        table: What `table_*` steps read; empty when the data has none.
        kind: See `kind_of`; empty without a program.
        evaluation_only: It is marked as not for training.
        extra: Further facts about the row, for rewards.
    """

    id: str
    company: str
    question: str
    text: str
    truth: Value
    program: str = ""
    table: Table = ()
    kind: str = ""
    evaluation_only: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answer(self) -> int | float | str:
        """The truth as it is written: 688, not 688.0."""
        return int(self.truth) if isinstance(self.truth, float) and self.truth.is_integer() else self.truth


class InputError(Exception):
    """What is wrong with a row, a line or a file, in words that follow its place."""


class _FieldError(InputError):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"field {name!r}: {reason}")


def read_row(value: object) -> Row:
    """A row in either form: `input_text` tells the second.

    Raises:
        InputError: A field is missing or malformed.
    """
    if not isinstance(value, dict):
        raise InputError("must be an object")
    fields = _Fields(value)
    return _prepared(fields) if "input_text" in value else _original(fields)


def _original(fields: _Fields) -> Row:
    identity, question, table = fields.text("id"), fields.text("qa.question"), fields.table("table")
    page = page_text(fields.sentences("pre_text"), table, fields.sentences("post_text"))
    program, text = fields.text("qa.program"), question_text(page, question)
    return Row(
        id=identity,
        company=cluster_of(fields.ticker(), identity, text, question),
        question=question,
        text=text,
        truth=fields.truth("qa.exe_ans"),
        program=program,
        table=table,
        kind=kind_of(_steps("qa.program", program)),
        extra=fields.extra(),
    )


def _prepared(fields: _Fields) -> Row:
    identity, table = fields.text("id"), fields.table("table", optional=True)
    program = fields.text("target_program", optional=True)
    steps = _steps("target_program", program)
    if not table and any(step.reads_table for step in steps):
        raise _FieldError("table", "is missing, and target_program reads it")
    text, question = fields.text("input_text"), fields.text("question")
    return Row(
        id=identity,
        company=cluster_of(fields.text("company", optional=True) or fields.ticker(), identity, text, question),
        question=question,
        text=text,
        truth=fields.truth("exe_ans" if fields.get("exe_ans") is not None else "target_answer"),
        program=program,
        table=table,
        kind=kind_of(steps),
        evaluation_only=fields.get("evaluation_only") is True,
        extra=fields.extra(),
    )


def kind_of(steps: Sequence[Step]) -> str:
    """The operations of up to two steps (`subtract+divide`); longer programs are one kind, as in the FinQA paper."""
    return "+".join(step.operation for step in steps) if len(steps) < 3 else "three or more steps"


def _steps(name: str, program: str) -> Sequence[Step]:
    try:
        return parse(program).steps if program else ()
    except ProgramError as error:
        raise _FieldError(name, f"is not a program of FinQA: {error}") from error


class _Fields:
    """Takes fields out of a row by their dotted names."""

    def __init__(self, row: dict[str, Any]) -> None:
        self._row = row

    def get(self, name: str) -> object:
        value: object = self._row
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def text(self, name: str, *, optional: bool = False) -> str:
        value = self.get(name)
        if value is None and optional:
            return ""
        text = _checked(name, value).strip()
        if not text and not optional:
            raise _FieldError(name, "must not be empty")
        return text

    def ticker(self) -> str:
        """That of the file `AAL/2018/page_13.pdf`; nothing when the row names none."""
        return self.text("filename", optional=True).partition("/")[0].strip()

    def sentences(self, name: str) -> str:
        """A list of sentences, or one text."""
        value = self.get(name)
        parts = value if isinstance(value, list) else [value]
        return " ".join(part for each in parts if (part := _checked(name, each).strip()))

    def table(self, name: str, *, optional: bool = False) -> Table:
        value = self.get(name)
        if not value and optional:
            return ()
        if not isinstance(value, list) or not value or not all(isinstance(row, list) and row for row in value):
            raise _FieldError(name, "must be a list of rows that are not empty")
        for place, row in enumerate(value, start=1):
            if len(row) != len(value[0]):
                raise _FieldError(name, f"ragged: row {place} has {len(row)} cells, the header has {len(value[0])}")
        return tuple(tuple(_checked(name, cell) for cell in row) for row in value)

    def truth(self, name: str) -> Value:
        value = self.get(name)
        if isinstance(value, str):
            word = value.strip().lower()
            if word == "yes":
                return "yes"
            if word == "no":
                return "no"
            value = _number(word)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _FieldError(name, "must be a number, yes or no")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise _FieldError(name, "must be a finite number")
        return number

    def extra(self) -> dict[str, Any]:
        value = self.get("extra_info")
        if value is not None and not isinstance(value, dict):
            raise _FieldError("extra_info", "must be an object")
        return value or {}


def _checked(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _FieldError(name, "must be a text")
    if len(value) > MAX_TEXT:
        raise _FieldError(name, f"holds {len(value)} characters, at most {MAX_TEXT} are taken")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise _FieldError(name, "is not valid Unicode: it holds half of a surrogate pair")
    return value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
