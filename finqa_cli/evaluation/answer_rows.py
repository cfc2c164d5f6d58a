"""Reads answers to score from row files, candidate files and run folders, and the truths to score them against."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.finqa.finqa_rows import finqa_row, is_finqa
from finqa_cli.data.question_files.question_rows import read_rows
from finqa_cli.data.question_files.read_files import require_file
from finqa_cli.runs.jsonl import read_jsonl

SOLUTION = ("solution", "text", "prediction")
TRUTH = ("truth", "target_answer", "ground_truth")
PROGRAM = ("program", "target_program")
QUESTION = ("question", "prompt")
ANSWER = "answer"
_WRAPPED = ("answer", "target")


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a reward may know about one question."""

    answer: str
    program: str = ""
    table: tuple[tuple[str, ...], ...] = ()
    question: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One question with its answers.

    Attributes:
        row: Place in the file, counted from 1.
        is_group: Whether the answers are candidates of one prompt, which are reported together.
    """

    row: int
    id: str
    solutions: tuple[str, ...]
    truth: Truth
    is_group: bool = False
    data_source: str = "finqa"
    extra_info: Mapping[str, Any] = field(default_factory=dict)


Truths = Mapping[str, Truth]
Found = Iterator[Answered | Problem]


def read_answers(path: Path, truths: Truths) -> Found:
    """Yields the rows of a file, each with its own truth, or else with that of its id in `truths`.

    A row contains a solution (`solution`, `text` or `prediction`), or `candidates` with one `text` each. It also
    contains a truth (`truth`, `target_answer`, `ground_truth`, or `target_json` with answer and program) unless
    `truths` has its id.

    Raises:
        ProblemError: The file as a whole cannot be read.
    """
    for item in read_rows(path):
        yield item if isinstance(item, Problem) else _guarded(path, *item, lambda row: _answered(row, truths))


def read_trajectories(path: Path, truths: Truths) -> Found:
    """Yields the last answer of every graded trajectory, without episodes that ended in a fault and a torn last line.

    Raises:
        ProblemError: The file is missing.
        DataError: A line is not a JSON object.
    """
    require_file(path)
    for number, fields in enumerate(read_jsonl(path), start=1):
        if fields.get("reward", 0) is not None:
            yield _guarded(path, number, fields, lambda row: _played(row, truths))


def read_truths(path: Path) -> Truths:
    """Returns id -> truth, from a file of FinQA rows (`exe_ans` is the truth) or of rows with `id` and a truth.

    Raises:
        ProblemError: The file, or one of its rows, is malformed.
    """
    truths: dict[str, Truth] = {}
    for item in read_rows(path):
        if isinstance(item, Problem):
            raise ProblemError(item)
        number, fields = item
        row = _Row(path, number, fields)
        if is_finqa(fields):
            finqa = finqa_row(str(path), number, fields)
            name = finqa.id
            truth = Truth(answer=finqa.truth, program=finqa.program, table=finqa.table, question=finqa.question)
        else:
            name, truth = row.text("id"), _truth(row, (*TRUTH, ANSWER))
        if name in truths:
            raise row.problem("id", f"{name[:80]!r} occurs twice")
        truths[name] = truth
    return truths


class _Row:
    """Reads the fields of one row; a wrong field is a problem with file, row and field."""

    def __init__(self, path: Path, number: int, fields: Mapping[str, Any]) -> None:
        self.fields = fields
        self.number = number
        self._path = path

    def problem(self, field: str, reason: str) -> ProblemError:
        return ProblemError(Problem(file=str(self._path), row=self.number, field=field, reason=reason))

    def with_fields(self, fields: Mapping[str, Any]) -> _Row:
        """Returns a reader of other fields, for the same row."""
        return _Row(self._path, self.number, fields)

    def which(self, names: tuple[str, ...]) -> str:
        """Returns the one of these names that the row has, or "". Two of them are a problem."""
        present = [name for name in names if self.fields.get(name) is not None]
        if len(present) > 1:
            raise self.problem(present[1], f"has the same meaning as {present[0]!r}; give one of them")
        return present[0] if present else ""

    def text(self, field: str) -> str:
        return self.as_text(field, self.fields.get(field))

    def as_text(self, field: str, value: object) -> str:
        """Returns a text, or a finite number as text."""
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise self.problem(field, "must be a text or a number" if value is not None else "is missing")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.problem(field, "is not a finite number")
        return str(value)

    def optional(self, names: tuple[str, ...]) -> str:
        name = self.which(names)
        return self.text(name) if name else ""

    def mapping(self, field: str) -> Mapping[str, Any]:
        value = self.fields.get(field)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = None
        if not isinstance(value, dict):
            raise self.problem(field, "must be an object")
        return value


def _guarded(
    path: Path, number: int, fields: dict[str, object], read: Callable[[_Row], Answered]
) -> Answered | Problem:
    try:
        return read(_Row(path, number, fields))
    except ProblemError as error:
        return error.problem


def _answered(row: _Row, truths: Truths) -> Answered:
    name = row.text("id") if row.fields.get("id") is not None else str(row.number)
    candidates = "candidates" in row.fields
    return Answered(
        row=row.number,
        id=name,
        solutions=_candidates(row) if candidates else (_solution(row),),
        truth=_own_truth(row) or _known(row, "id", name, truths),
        is_group=candidates,
        data_source=row.optional(("data_source",)) or "finqa",
        extra_info=row.mapping("extra_info") if row.fields.get("extra_info") is not None else {},
    )


def _played(row: _Row, truths: Truths) -> Answered:
    task = row.mapping("task")
    name = row.as_text("task.id", task.get("id"))
    return Answered(
        row=row.number,
        id=row.text("id"),
        solutions=(_last_answer(row),),
        truth=_known(row, "task.id", name, truths),
        extra_info={"question": task.get("prompt", ""), "question_type": task.get("kind", "")},
    )


def _last_answer(row: _Row) -> str:
    """Returns the argument `answer` of the last call; without tools, the text of the last turn; else ""."""
    turns = row.fields.get("turns")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise row.problem("turns", "must be a list of objects")
    if not turns:
        return ""
    last = (turns[-1].get("further_steps") or turns[-1:])[-1]
    call = last.get("tool_call") if isinstance(last, dict) else None
    if call is None:
        return "" if row.fields.get("tools") else str(turns[-1].get("text", ""))
    arguments = call.get("arguments") if isinstance(call, dict) else None
    if not isinstance(arguments, dict):
        raise row.problem("turns", "the last call has no arguments")
    answer = arguments.get(ANSWER)
    return "" if answer is None else answer if isinstance(answer, str) else json.dumps(answer)


def _solution(row: _Row) -> str:
    name = row.which(SOLUTION)
    if not name:
        raise row.problem(SOLUTION[0], f"is missing; also accepted: {', '.join(SOLUTION[1:])}, candidates")
    value = row.fields[name]
    return json.dumps(value) if isinstance(value, dict) else row.as_text(name, value)


def _candidates(row: _Row) -> tuple[str, ...]:
    found = row.fields["candidates"]
    if not isinstance(found, list) or not found:
        raise row.problem("candidates", "must be a list that is not empty")
    return tuple(
        row.as_text(f"candidates[{place}].text", one.get("text") if isinstance(one, dict) else one)
        for place, one in enumerate(found)
    )


def _own_truth(row: _Row) -> Truth | None:
    if "target_json" in row.fields:
        return _truth(row.with_fields({**row.mapping("target_json"), **_shown(row)}), (*TRUTH, ANSWER))
    return _truth(row, TRUTH) if row.which(TRUTH) else None


def _shown(row: _Row) -> dict[str, Any]:
    return {name: row.fields[name] for name in (*QUESTION, "table") if row.fields.get(name) is not None}


def _truth(row: _Row, names: tuple[str, ...]) -> Truth:
    name = row.which(names)
    if not name:
        raise row.problem(names[0], f"is missing; also accepted: {', '.join(names[1:])}, target_json, or --truth FILE")
    value = row.fields[name]
    if isinstance(value, dict):  # as verl's data has it: {"answer": ...} or {"target": ...}
        inner = [value[key] for key in _WRAPPED if key in value]
        value = inner[0] if len(inner) == 1 else value
    return Truth(
        answer=row.as_text(name, value),
        program=row.optional(PROGRAM),
        table=_table(row),
        question=next((str(row.fields[one]) for one in QUESTION if isinstance(row.fields.get(one), str)), ""),
    )


def _table(row: _Row) -> tuple[tuple[str, ...], ...]:
    value = row.fields.get("table")
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(cells, list) for cells in value):
        raise row.problem("table", "must be a list of rows")
    return tuple(tuple(row.as_text(f"table[{place}]", cell) for cell in cells) for place, cells in enumerate(value))


def _known(row: _Row, field: str, name: str, truths: Truths) -> Truth:
    if name not in truths:
        names = ", ".join((*TRUTH, "target_json"))
        reason = (
            f"the given truths contain none for {name[:80]!r}"
            if truths
            else (f"the row has no truth ({names}), and no --truth FILE was given")
        )
        raise row.problem(field, reason)
    return truths[name]
