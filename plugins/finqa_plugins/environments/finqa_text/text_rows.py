"""Questions with their pages and truths, read from rows of original FinQA or of `finqa data prepare`.

Source of the first form: FinQA, arXiv 2109.00122. The truth is `exe_ans`: `answer`, which people typed, differs from it
in scale or sign in a tenth of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finqa_cli.grading.program_reply import plain
from finqa_cli.grading.programs import ProgramError, Step, Value, parse
from finqa_cli.types.splits import cluster_of
from finqa_plugins.environments._task_files.report_pages import (
    MAX_BYTES,
    MAX_TEXT,
    PageFields,
    Table,
    page_text,
    question_text,
)
from finqa_plugins.environments._task_files.split_files import load_by_split
from finqa_plugins.environments._task_files.task_rows import (
    FieldError,
    RowError,
    RowReader,
    TaskData,
    divide_by_cluster,
)
from finqa_plugins.environments.finqa_text.config import FinQATextConfig

_REMEDY = "--data with a FinQA json file, a JSONL file of `finqa data prepare`, or a folder with train, dev and test"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """One question.

    Attributes:
        id: Unique in its data.
        company: Company or ticker of the row, else the ticker in its id, else a name from its page (see `cluster_of`).
        question: The question without its page.
        text: The whole user message: page and question.
        truth: The right answer; in original rows the result of the gold program.
        program: The gold program; empty if the data has none.
        table: The table that `table_*` steps read; empty if the data has none.
        kind: See `kind_of`; empty without a program.
        evaluation_only: Whether the row is marked as not for training.
        extra: The row's `extra_info`, for rewards.
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
        return plain(self.truth)


def read_row(value: object) -> TextRow:
    """Read a row in either form; only rows of `finqa data prepare` have a field `input_text`.

    Raises:
        RowError: A field is missing or malformed.
    """
    if not isinstance(value, dict):
        raise RowError("must be an object")
    fields = PageFields(value, MAX_TEXT)
    return _prepared(fields) if "input_text" in value else _original(fields)


def _original(fields: PageFields) -> TextRow:
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


def _prepared(fields: PageFields) -> TextRow:
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


def divide(rows: Sequence[TextRow], shares: Mapping[str, float], seed: int) -> dict[str, tuple[TextRow, ...]]:
    """Divide rows by company; see `divide_by_cluster`."""
    return divide_by_cluster(rows, lambda row: row.company, shares, f"finqa-text:{seed}")


def load(path: Path, config: FinQATextConfig) -> TaskData[TextRow]:
    """Read the rows at a path; see `load_by_split`.

    Raises:
        DataError: The path or a row is missing or malformed (file, row, field, reason), or there is no row.
    """
    reader = RowReader(lambda value, _: read_row(value), max_bytes=MAX_BYTES, remedy=_REMEDY, skip_bad=config.skip_bad)
    return load_by_split(
        path,
        reader,
        split=config.split,
        divide=lambda rows: divide(rows, {"dev": config.holdout}, config.seed),
        is_held_out=lambda row: row.evaluation_only,
    )
