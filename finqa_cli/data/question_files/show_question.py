"""One question with its tables, or one table, from a data folder, a snapshot, a FinQA file or a question file."""

from __future__ import annotations

import difflib
import json
import shlex
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.data.data_problems import Problem, ProblemError, as_data_error
from finqa_cli.data.dataset import Question, Table
from finqa_cli.data.finqa.finqa_import import page_table
from finqa_cli.data.finqa.finqa_rows import FinqaRow, finqa_row, is_finqa
from finqa_cli.data.openenv_layout.layout_reader import scan_layout
from finqa_cli.data.question_files.question_rows import read_rows, split_files
from finqa_cli.data.snapshots.compile import TABLES, TASKS, TRUTH
from finqa_cli.errors import DataError
from finqa_cli.types import Snapshot

_ANSWERS = (
    "answer",
    "target_answer",
    "ground_truth",
    "exe_ans",
    "answer_text",
    "program",
    "target_program",
    "explanation",
)
"""Fields of a plain question row that reveal the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A question for display.

    Attributes:
        facts: Public fields by name.
        text: The page around the table; empty for data without one.
        tables: The tables that contain the answer; empty if they are unknown.
        other_tables: Names of the company's other tables.
        solution: Fields that reveal the answer, by name.
    """

    facts: dict[str, str]
    text: str = ""
    tables: tuple[Table, ...] = ()
    other_tables: tuple[str, ...] = ()
    solution: dict[str, str]

    def document(self, *, answer: bool) -> dict[str, Any]:
        """Returns a JSON object."""
        tables = [
            {"company": table.company, "name": table.name, "columns": list(table.columns), "rows": list(table.rows)}
            for table in self.tables
        ]
        shown = {**self.facts, "text": self.text, "tables": tables, "other_tables": list(self.other_tables)}
        return {**shown, **(self.solution if answer else {})}


def show_in_path(path: Path, identity: str) -> Shown:
    """Returns the question of this id in a data folder, a question file, or a folder of question files named by split.

    Raises:
        DataError: There is no such question, or its row is malformed.
    """
    files = split_files(path) if path.is_dir() else (path,)
    if not files:
        dataset = scan_layout(path).dataset
        question = _found(identity, {one.id: one for one in dataset.questions}, str(path))
        return _of_question(question, [table for table in dataset.tables if table.company == question.company])
    try:
        by_id = {
            str(item[1].get("id", item[1].get("question_id", item[0]))): (file, *item)
            for file in files
            for item in read_rows(file)
            if not isinstance(item, Problem)
        }
        file, number, fields = _found(identity, by_id, str(path))
        return _of_finqa(finqa_row(str(file), number, fields)) if is_finqa(fields) else _of_fields(fields)
    except ProblemError as error:
        raise as_data_error([error.problem], remedy="correct it, or name another file") from error


def find_table(folder: Path, name: str) -> Table:
    """Returns a table of a data folder.

    Args:
        folder: The data folder.
        name: `company/table`, or the name alone if it is the only such table; case does not matter.

    Raises:
        DataError: There is no such table, or several, or the folder is malformed.
    """
    tables = {f"{table.company}/{table.name}": table for table in scan_layout(folder).dataset.tables}
    if name in tables:
        return tables[name]
    same = [key for key in tables if name.casefold() in (key.casefold(), key.casefold().partition("/")[2])]
    if len(same) == 1:
        return tables[same[0]]
    near = same or difflib.get_close_matches(name, tables, n=3, cutoff=0.3) or list(tables)[:3]
    what = "several tables" if same else "no table"
    fix = f"finqa data show {shlex.quote(str(folder))} {shlex.quote(near[0])}" if near else ""
    raise DataError(f"There is {what} {name!r} in {folder}: {', '.join(near[:10])}.", remedy=fix)


def show_in_snapshot(snapshot: Snapshot, identity: str) -> Shown:
    """Returns the question of this id in a compiled snapshot, whose files were checked when it was opened.

    Raises:
        DataError: There is no such question.
    """
    tasks = {task["id"]: task for task in _lines(snapshot.path / TASKS)}
    task = _found(identity, tasks, f"snapshot {snapshot.name!r}")
    truth = next(one for one in _lines(snapshot.path / TRUTH) if one["id"] == identity)
    question = Question(
        **{name: task[name] for name in ("id", "company", "question", "user_query", "split", "type")},
        **{name: truth.get(name, "") for name in ("answer", "table_name", "gold_sql", "explanation")},
    )
    return _of_question(question, _tables(snapshot.path / TABLES, question.company))


def _found(identity: str, known: dict[str, Any], where: str) -> Any:
    if identity in known:
        return known[identity]
    near = sorted(difflib.get_close_matches(identity, known, n=3))
    first = next(iter(known), "")
    hint = f" The first is {first}." if first else ""
    hint += f" Similar ids: {', '.join(near)}." if near else ""
    raise DataError(f"There is no question {identity!r} among the {len(known)} of {where}.{hint}")


def _of_question(question: Question, tables: Sequence[Table]) -> Shown:
    named: Collection[str] = question.table_names
    if not named and len(tables) == 1:
        named = {tables[0].name}
    facts = {
        "id": question.id,
        "company": question.company,
        "split": question.split,
        "type": question.type,
        "question": question.user_query,
    }
    solution = {"answer": question.answer, "explanation": question.explanation, "gold_sql": question.gold_sql}
    return Shown(
        facts=facts,
        tables=tuple(table for table in tables if table.name in named),
        other_tables=tuple(table.name for table in tables if table.name not in named),
        solution={name: text for name, text in solution.items() if text},
    )


def _of_finqa(row: FinqaRow) -> Shown:
    text = "\n\n".join(" ".join(part) for part in (row.pre_text, row.post_text) if part)
    table = page_table(row.company, row.filename or row.id, row.table)
    facts = {"id": row.id, "company": row.company, "page": row.filename, "question": row.question}
    solution = {"answer": row.truth, "answer_text": row.answer, "program": row.program}
    return Shown(facts=facts, text=text, tables=(table,), solution=solution)


def _of_fields(fields: dict[str, object]) -> Shown:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    text = texts.pop("input_text", "")
    texts.pop("table", None)  # `input_text` contains it
    return Shown(
        facts={name: value for name, value in texts.items() if name not in _ANSWERS},
        text=text,
        solution={name: value for name, value in texts.items() if name in _ANSWERS},
    )


def _lines(path: Path) -> Iterable[dict[str, str]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def _tables(path: Path, company: str) -> list[Table]:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        catalog = database.execute(
            "SELECT table_name, physical, info FROM catalog WHERE company = ? ORDER BY table_name", (company,)
        ).fetchall()
        found = []
        for name, physical, info in catalog:
            cursor = database.execute(f'SELECT * FROM "{physical}"')
            columns = tuple(column[0] for column in cursor.description)
            rows = tuple(cursor.fetchall())
            found.append(Table(company=company, name=name, columns=columns, rows=rows, metadata=json.loads(info)))
        return found
