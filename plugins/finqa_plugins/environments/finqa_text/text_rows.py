"""Questions with their pages and truths, read from rows of original FinQA or of `finqa data prepare`.

Source of the first form: FinQA, arXiv 2109.00122. The truth is `exe_ans`: `answer`, which people typed, differs from it
in scale or sign in a tenth of the rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError
from finqa_cli.grading.programs import ProgramError, Step, Value, parse
from finqa_cli.types import DataInfo
from finqa_cli.types.splits import cluster_of, split_of_name
from finqa_plugins.environments._task_files.task_rows import (
    FieldError,
    RowError,
    RowFields,
    RowReader,
    TaskData,
    checked_text,
    divide_by_cluster,
    files_by_split,
    group_by_split,
)
from finqa_plugins.environments.finqa_text.config import FinQATextConfig

MAX_BYTES = 2**30
_ENDINGS = (".json", ".jsonl")
_REMEDY = "--data takes a FinQA json file, a JSONL file of finqa data prepare, or a folder with train, dev and test"

MAX_TEXT = 1_000_000
"""Characters of one field; the longest page of FinQA has nine thousand."""

Table = tuple[tuple[str, ...], ...]
"""[R][C] cells, the header first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
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
        """The truth as people write it: 688, not 688.0."""
        return int(self.truth) if isinstance(self.truth, float) and self.truth.is_integer() else self.truth


def read_row(value: object) -> TextRow:
    """Read a row in either form: `input_text` tells the second.

    Raises:
        RowError: A field is missing or malformed.
    """
    if not isinstance(value, dict):
        raise RowError("must be an object")
    fields = _TextFields(value, MAX_TEXT)
    return _prepared(fields) if "input_text" in value else _original(fields)


def _original(fields: _TextFields) -> TextRow:
    identity, question, table = fields.text("id"), fields.text("qa.question"), fields.table("table")
    page = page_text(fields.sentences("pre_text"), table, fields.sentences("post_text"))
    program, text = fields.text("qa.program"), question_text(page, question)
    return TextRow(
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


def _prepared(fields: _TextFields) -> TextRow:
    identity, table = fields.text("id"), fields.table("table", optional=True)
    program = fields.text("target_program", optional=True)
    steps = _steps("target_program", program)
    if not table and any(step.reads_table for step in steps):
        raise FieldError("table", "is missing, and target_program reads it")
    text, question = fields.text("input_text"), fields.text("question")
    return TextRow(
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
    """Name the operations of up to two steps (`subtract+divide`); longer programs are one kind, as in the paper."""
    return "+".join(step.operation for step in steps) if len(steps) < 3 else "three or more steps"


def _steps(name: str, program: str) -> Sequence[Step]:
    try:
        return parse(program).steps if program else ()
    except ProgramError as error:
        raise FieldError(name, f"is not a program of FinQA: {error}") from error


class _TextFields(RowFields):
    """The fields that rows of FinQA have."""

    def ticker(self) -> str:
        """Return the ticker in the file name `AAL/2018/page_13.pdf`; nothing when the row names none."""
        return self.text("filename", optional=True).partition("/")[0].strip()

    def sentences(self, name: str) -> str:
        """Join a list of sentences, or return one text."""
        value = self.get(name)
        parts = value if isinstance(value, list) else [value]
        return " ".join(part for each in parts if (part := checked_text(name, each, MAX_TEXT).strip()))

    def table(self, name: str, *, optional: bool = False) -> Table:
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
    """Return a report page: text, table, text; the table as lines of cells between bars."""
    lines = "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in row)} |" for row in table)
    return "\n\n".join(part for part in (before, f"Table:\n{lines}", after) if part)


def question_text(page: str, question: str) -> str:
    """Return the user message: the page, then the question."""
    return f"Context:\n{page}\n\nQuestion: {question}"


def divide(rows: Sequence[TextRow], shares: Mapping[str, float], seed: int) -> dict[str, tuple[TextRow, ...]]:
    """Divide rows by company; see `divide_by_cluster`."""
    return divide_by_cluster(rows, lambda row: row.company, shares, f"finqa-text:{seed}")


def load(path: Path, config: FinQATextConfig) -> TaskData[TextRow]:
    """Read the rows at a path.

    A folder holds a file for each split. A single file called test is `test`, and one called dev or val is `dev`; any
    other is training data, of which the share `holdout` of the companies becomes `dev`.

    Raises:
        DataError: The path or a row is missing or malformed (file, row, field, reason), or there is no row.
    """
    reader = RowReader(lambda value, _: read_row(value), max_bytes=MAX_BYTES, remedy=_REMEDY, skip_bad=config.skip_bad)
    if path.is_dir():
        return _load_folder(path, reader, config)
    named = split_of_name(path)
    split = (named or "train") if config.split == "auto" else config.split
    found, digest = reader.read(path)
    reader.finish(any_row=bool(found))
    rows = divide(found, {"dev": config.holdout}, config.seed) if split == "train" else {split: tuple(found)}
    evaluation_only = named == "test" or any(row.evaluation_only for row in found)
    return TaskData(
        info=DataInfo(name=path.name, digest=f"sha256:{digest}", evaluation_only=evaluation_only), rows=rows
    )


def _load_folder(path: Path, reader: RowReader[TextRow], config: FinQATextConfig) -> TaskData[TextRow]:
    if config.split != "auto":
        raise DataError(f"Option split={config.split} is for a single file, but {path} is a folder.", remedy=_REMEDY)
    files = files_by_split(path, _ENDINGS, remedy=_REMEDY, choose="leave one of them there", exact_first=True)
    read = {split: reader.read(file) for split, file in files.items()}
    rows = group_by_split((split, row) for split, (found, _) in read.items() for row in found)
    reader.finish(any_row=bool(rows))
    lines = "".join(f"{digest}  {split}\n" for split, (_, digest) in read.items())
    training = [row for split, part in rows.items() if split != "test" for row in part]
    evaluation_only = not training or any(row.evaluation_only for row in training)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    info = DataInfo(name=path.resolve().name, digest=f"sha256:{digest}", evaluation_only=evaluation_only)
    return TaskData(info=info, rows=rows)
