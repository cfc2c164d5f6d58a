"""Questions about a table and its paragraphs, read from the published files of TAT-QA (arXiv 2105.07624)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.grading.tatqa import SCALES
from finqa_plugins.environments._task_files.split_files import load_by_split
from finqa_plugins.environments._task_files.task_rows import (
    FieldError,
    RowError,
    RowFields,
    RowReader,
    TaskData,
    checked_text,
    divide_by_cluster,
)
from finqa_plugins.environments.tatqa.config import TatQAConfig

KINDS = ("span", "multi-span", "arithmetic", "count")
MAX_BYTES = 2**30
MAX_TEXT = 1_000_000
_REMEDY = "--data with a TAT-QA json file, or a folder with train, dev and test"


@dataclass(frozen=True, slots=True, kw_only=True)
class TatQARow:
    """One question.

    Attributes:
        id: Unique in its data.
        page: Id of the table, which all questions of a page share.
        question: The question without its page.
        text: The whole user message: table, paragraphs and question.
        answer: The right answer: one text for each span, or the text of a number.
        scale: One of `SCALES`.
        kind: One of `KINDS`.
        source: Where the answer is found: `table`, `text` or `table-text`; empty if the data does not name it.
    """

    id: str
    page: str
    question: str
    text: str
    answer: tuple[str, ...] | str
    scale: str
    kind: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A table with its paragraphs, and all questions about them. Its id is that of the table."""

    id: str
    questions: tuple[TatQARow, ...]


def load(path: Path, config: TatQAConfig) -> TaskData[TatQARow]:
    """Read the questions at a path; see `load_by_split`. A single training file is divided by page.

    Raises:
        DataError: The path or a page is missing or malformed (file, row, field, reason), or there is no page.
    """
    questions: set[str] = set()

    def read(value: object, _: str) -> Page:
        page = read_page(value)
        for row in page.questions:
            if row.id in questions:
                raise FieldError("questions.uid", f"{row.id} occurs twice")
            questions.add(row.id)
        return page

    pages = load_by_split(
        path,
        RowReader(read, max_bytes=MAX_BYTES, remedy=_REMEDY, id_field="table.uid", skip_bad=config.skip_bad),
        split=config.split,
        divide=lambda found: divide_by_cluster(
            found, lambda page: page.id, {"dev": config.holdout}, f"tatqa:{config.seed}"
        ),
    )
    rows = {split: tuple(row for page in part for row in page.questions) for split, part in pages.rows.items()}
    return TaskData(info=pages.info, rows=rows)


def read_page(value: object) -> Page:
    """Read a page with its questions.

    Raises:
        RowError: A field is missing or malformed.
    """
    if not isinstance(value, dict):
        raise RowError("must be an object")
    fields = RowFields(value, MAX_TEXT)
    identity = fields.text("table.uid")
    context = "\n\n".join([_table(fields.get("table.table")), *_paragraphs(fields.get("paragraphs"))])
    questions = _objects("questions", fields.get("questions"))
    if not questions:
        raise FieldError("questions", "must not be empty")
    return Page(id=identity, questions=tuple(_question(each, identity, context) for each in questions))


def _question(value: Mapping[str, Any], page: str, context: str) -> TatQARow:
    fields = RowFields(value, MAX_TEXT)
    question, kind, scale = fields.text("question"), fields.text("answer_type"), fields.get("scale")
    if kind not in KINDS:
        raise FieldError("questions.answer_type", f"{kind!r} is not one of {', '.join(KINDS)}")
    if scale not in SCALES:
        raise FieldError("questions.scale", f"{scale!r} is not one of {', '.join(SCALES[1:])} or empty")
    return TatQARow(
        id=fields.text("uid"),
        page=page,
        question=question,
        text=f"{context}\n\nQuestion: {question}",
        answer=_answer(kind, fields.get("answer")),
        scale=str(scale),
        kind=kind,
        source=fields.text("answer_from", optional=True),
    )


def _answer(kind: str, value: object) -> tuple[str, ...] | str:
    name = "questions.answer"
    if kind in ("span", "multi-span"):
        if not isinstance(value, list) or not value:
            raise FieldError(name, f"must be a list of texts for a {kind}")
        return tuple(checked_text(name, part, MAX_TEXT) for part in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FieldError(name, f"must be a number for {kind}")
    text = str(value)
    try:
        whole = str(int(text)) if kind == "count" else text
        float(whole)
    except (ValueError, OverflowError):
        raise FieldError(name, f"{text[:40]!r} is no number, as {kind} needs") from None
    return whole


def _table(value: object) -> str:
    if not isinstance(value, list) or not value or not all(isinstance(row, list) for row in value):
        raise FieldError("table.table", "must be a list of rows that is not empty")
    rows = [[checked_text("table.table", cell, MAX_TEXT) for cell in row] for row in value]
    return "Table:\n" + "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in row)} |" for row in rows)


def _paragraphs(value: object) -> list[str]:
    paragraphs = _objects("paragraphs", value)
    if not all(isinstance(each.get("order"), int) for each in paragraphs):
        raise FieldError("paragraphs.order", "must be a whole number")
    ordered = sorted(paragraphs, key=lambda each: each["order"])
    return [checked_text("paragraphs.text", each.get("text"), MAX_TEXT) for each in ordered]


def _objects(name: str, value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise FieldError(name, "must be a list of objects")
    return value
