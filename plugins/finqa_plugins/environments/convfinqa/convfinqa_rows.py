"""Dialogues about report pages, read from files of ConvFinQA (arXiv 2210.03849).

Two forms are read: that of its repository (`annotation.dialogue_break`, `turn_program`, `exe_ans_list`), and the
cleaned one (`dialogue.conv_questions`, `turn_program`, `executed_answers`), whose tables map each column to its cells
by row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.grading.program_reply import compare_programs
from finqa_cli.grading.programs import ProgramError, Value
from finqa_cli.types.splits import cluster_of
from finqa_plugins.environments._task_files.report_pages import MAX_BYTES, MAX_TEXT, PageFields, Table, page_text
from finqa_plugins.environments._task_files.split_files import load_by_split
from finqa_plugins.environments._task_files.task_rows import (
    FieldError,
    RowError,
    RowReader,
    TaskData,
    checked_text,
    divide_by_cluster,
)
from finqa_plugins.environments.convfinqa.config import ConvFinQAConfig

_REMEDY = "--data with a ConvFinQA json file of dialogues, or a folder with train, dev and test"


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueTurn:
    """One question with its gold program, which may be a bare number, and the value of that program."""

    question: str
    program: str
    truth: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """A page with the questions about it.

    Attributes:
        id: Unique in its data.
        company: Ticker in the id, or else a name made from the page.
        page: Text and table.
        table: What `table_*` steps read.
        turns: The questions in order, at least one.
        kind: `simple`, or `hybrid` if it joins the questions of two FinQA questions about one page.
    """

    id: str
    company: str
    page: str
    table: Table
    turns: tuple[DialogueTurn, ...]
    kind: str


def load(path: Path, config: ConvFinQAConfig) -> TaskData[Dialogue]:
    """Read the dialogues at a path; see `load_by_split`. A single training file is divided by company.

    Raises:
        DataError: The path or a dialogue is missing or malformed (file, row, field, reason), or there is no dialogue.
    """
    reader = RowReader(
        lambda value, _: read_dialogue(value), max_bytes=MAX_BYTES, remedy=_REMEDY, skip_bad=config.skip_bad
    )
    return load_by_split(
        path,
        reader,
        split=config.split,
        divide=lambda rows: divide_by_cluster(
            rows, lambda row: row.company, {"dev": config.holdout}, f"convfinqa:{config.seed}"
        ),
    )


def read_dialogue(value: object) -> Dialogue:
    """Read a dialogue in either form; only the cleaned form has a field `doc`.

    Raises:
        RowError: A field is missing or malformed, or a gold program does not give its answer.
    """
    if not isinstance(value, dict):
        raise RowError("must be an object")
    fields = PageFields(value, MAX_TEXT)
    identity, cleaned = fields.text("id"), "doc" in value
    base, turns, questions, answers = (
        ("doc.", "dialogue", "conv_questions", "executed_answers")
        if cleaned
        else ("", "annotation", "dialogue_break", "exe_ans_list")
    )
    table = _columns("doc.table", fields.get("doc.table")) if cleaned else fields.table("table")
    page = page_text(fields.sentences(f"{base}pre_text"), table, fields.sentences(f"{base}post_text"))
    names = [f"{turns}.{name}" for name in (questions, "turn_program", answers, "qa_split")]
    lists = [_list(name, fields.get(name)) for name in names]
    for name, part in zip(names, lists, strict=True):
        if len(part) != len(lists[0]) or not part:
            raise FieldError(name, f"has {len(part)} turns, {names[0]} has {len(lists[0])}, and one is needed")
    found = tuple(
        _turn(number, names, turn, table) for number, turn in enumerate(zip(*lists[:3], strict=True), start=1)
    )
    return Dialogue(
        id=identity,
        company=cluster_of(identity.partition("/")[0].rpartition("_")[2] if "/" in identity else "", "", page, ""),
        page=page,
        table=table,
        turns=found,
        kind="hybrid" if any(lists[3]) else "simple",
    )


def _turn(number: int, names: list[str], turn: tuple[Any, Any, Any], table: Table) -> DialogueTurn:
    question, program = (checked_text(names[place], turn[place], MAX_TEXT).strip() for place in (0, 1))
    if not question:
        raise FieldError(names[0], f"turn {number} must not be empty")
    truth = _truth(names[2], number, turn[2])
    try:
        verdict = compare_programs(program, program, table, truth, selects=True)
    except ProgramError as error:
        raise FieldError(names[1], f"turn {number} is not a program of ConvFinQA: {error}") from error
    if not verdict.execution:
        raise FieldError(names[1], f"turn {number} gives {verdict.executed}, not {truth} of {names[2]}")
    return DialogueTurn(question=question, program=program, truth=truth)


def _truth(name: str, number: int, value: object) -> Value:
    if value == "yes":
        return "yes"
    if value == "no":
        return "no"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FieldError(name, f"turn {number} must be a number, yes or no")
    return float(value)


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise FieldError(name, "must be a list with an entry for each turn")
    return value


def _columns(name: str, value: object) -> Table:
    if not isinstance(value, Mapping) or not value or not all(isinstance(cells, Mapping) for cells in value.values()):
        raise FieldError(name, "must be an object of columns, each of which has cells by row")
    rows = list(dict.fromkeys(row for cells in value.values() for row in cells))
    header = ("", *map(str, value))
    return (header, *((row, *(str(cells.get(row, "")) for cells in value.values())) for row in rows))
