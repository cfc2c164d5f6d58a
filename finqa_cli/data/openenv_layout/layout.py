"""Writes the data folder that finqa reads, in the layout of the OpenEnv FinQA environment."""

from __future__ import annotations

import csv
import io
import itertools
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from finqa_cli.data.dataset import DataSet, Table
from finqa_cli.data.question_files.field_values import name_fault
from finqa_cli.errors import DataError, StorageError

QUESTIONS_FILE = "benchmark_questions/finqa.csv"
COMPANIES_FOLDER = "input_companies"
TABLES_FILE = f"{COMPANIES_FOLDER}/tables_cleaned_all_companies.json"
ABOUT_FILE = "dataset.json"
IMPORT_FILE = "import.json"
"""The record of an import: the sha256 of every file that it wrote."""

STAGE = ".import-"
"""Beginning of the name of a folder in which an import exchanges files; it is left if the import is killed."""

PARTS = (Path(QUESTIONS_FILE).parts[0], COMPANIES_FOLDER, ABOUT_FILE, IMPORT_FILE)
"""What an import writes. Without the first one the folder is no data folder, so it leaves first and comes last."""

REQUIRED_COLUMNS = ("id", "user_query", "company", "question", "answer")
COLUMNS = (*REQUIRED_COLUMNS, "question_type", "explanation", "split", "table_name", "gold_sql")


def layout_files(dataset: DataSet) -> Iterator[tuple[str, str]]:
    """Yields the files of the layout as (relative path, text), in an order that depends on the data set only."""
    yield QUESTIONS_FILE, _questions_csv(dataset)
    cleaned: dict[str, object] = {}
    for table in sorted(dataset.tables, key=lambda table: (table.company, table.name)):
        records = _records(table)
        yield f"{COMPANIES_FOLDER}/{table.company}/{table.name}.json", records + "\n"
        cleaned[f"{table.company}/{table.name}"] = {"table": records, **table.metadata}
    yield TABLES_FILE, json.dumps(cleaned, ensure_ascii=False, indent=0) + "\n"
    about = {"source": dataset.source, "licence": dataset.licence, "evaluation_only": dataset.evaluation_only}
    about |= {"expert": dataset.expert} if dataset.expert else {}
    about |= {"grader": dataset.grader} if dataset.grader else {}
    yield ABOUT_FILE, json.dumps(about, indent=2) + "\n"


def write_layout(dataset: DataSet, folder: Path) -> None:
    """Writes the data set into `folder`, which is created if missing.

    Raises:
        DataError: A company or table has a name that cannot be a file.
        StorageError: The folder contains a data set or other files already, or writing failed.
    """
    for table in dataset.tables:
        for name in (table.company, table.name):
            if reason := name_fault(name):
                raise DataError(f"The company or table name {name[:80]!r} {reason}, so it cannot be a file.")
    if contains_data(folder):
        raise StorageError(
            f"{folder} already contains a data set; it is not overwritten.",
            remedy=f"--out {shlex.quote(free_name(folder))}",
        )
    if other := _other_file(folder):
        raise StorageError(
            f"{folder} contains {other}, which is no part of a data set, so nothing is written into it.",
            remedy=f"--out {shlex.quote(free_name(folder))}",
        )
    try:
        for name, text in layout_files(dataset):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise StorageError(f"Writing the data set to {folder} failed: {error.strerror or error}.") from error


def contains_data(folder: Path) -> bool:
    """Returns whether a folder has questions or tables of a data set."""
    return (folder / QUESTIONS_FILE).exists() or (folder / COMPANIES_FOLDER).exists()


def _other_file(folder: Path) -> str:
    """Returns the name of a file that is no part of a data set; empty if there is none, or an import was killed there.

    Hidden files, such as those of git, do not count.
    """
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if any(name.startswith(STAGE) for name in names):
        return ""
    return next((name for name in names if not name.startswith(".") and name not in PARTS), "")


def free_name(folder: Path) -> str:
    """Returns the first unused path among `FOLDER-2`, `FOLDER-3`, and so on."""
    names = (f"{folder}-{number}" for number in itertools.count(2))
    return next(name for name in names if not Path(name).exists())


def _questions_csv(dataset: DataSet) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for question in dataset.questions:
        writer.writerow(
            [
                question.id,
                question.user_query,
                question.company,
                question.question,
                question.answer,
                question.type,
                question.explanation,
                question.split,
                question.table_name,
                question.gold_sql,
            ]
        )
    return text.getvalue()


def _records(table: Table) -> str:
    records = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return json.dumps(records, ensure_ascii=False)
