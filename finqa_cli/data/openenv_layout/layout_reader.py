"""Reads and checks a data folder in the layout of the OpenEnv FinQA environment (Snorkel's finqa-data)."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from finqa_cli.data.data_problems import (
    ImportReport,
    Problem,
    ProblemError,
    as_data_error,
    finish_import,
    for_evaluation,
)
from finqa_cli.data.dataset import (
    BOXED_SOURCE,
    SNORKEL_REPOSITORY,
    DataSet,
    Question,
    SplitShares,
    Table,
    named_tables,
    split_of,
)
from finqa_cli.data.import_advice import IMPORTERS, advise_import
from finqa_cli.data.openenv_layout.layout import ABOUT_FILE, QUESTIONS_FILE, REQUIRED_COLUMNS
from finqa_cli.data.openenv_layout.table_files import read_tables
from finqa_cli.data.question_files.field_values import text_fault
from finqa_cli.data.question_files.question_rows import csv_rows, split_files
from finqa_cli.data.question_files.read_files import read_json
from finqa_cli.grading import PROFILES, REMOVED
from finqa_cli.types.splits import SPLIT_NAMES

FETCH_FILE = "fetch.json"
_FOLDERS_UP = 3
"""Largest depth of a fetched file: data/multi_table_data/train_finqa.csv of rLLM-FinQA."""

_WORDS = {str: "a text", bool: "true or false", list: "a list"}


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Origin, use, expert and grader of data (see `DataSet`); a field is empty or None if it is not stated."""

    source: str = ""
    licence: str = ""
    evaluation_only: bool | None = None
    expert: str = ""
    grader: str = ""


def about_folder(folder: Path) -> About:
    """Returns the contents of `dataset.json`, or of `fetch.json` if there is none.

    Types are checked, so that the text `"false"` does not count as true.

    Raises:
        ProblemError: The file is damaged.
    """
    path = folder / ABOUT_FILE
    if not path.exists():
        return _fetched(folder, None)
    about = _checked(path, {"source": str, "licence": str, "evaluation_only": bool, "expert": str, "grader": str})
    if about.get("grader") and about["grader"] not in {*PROFILES, *REMOVED}:
        reason = f"must be one of: {', '.join(PROFILES)}"
        raise ProblemError(Problem(file=str(path), field="grader", reason=reason))
    return About(**{field: about[field] for field in About.__dataclass_fields__ if field in about})


def about_file(path: Path) -> About:
    """Returns what `fetch.json` records about a file, from the folder that it was fetched into.

    Raises:
        ProblemError: `fetch.json` is damaged.
    """
    folders = path.absolute().parents[:_FOLDERS_UP]
    return next((_fetched(folder, path.absolute()) for folder in folders if (folder / FETCH_FILE).exists()), About())


def _fetched(folder: Path, file: Path | None) -> About:
    """Returns what `fetch.json` records about a file, or about the folder if `file` is None.

    `evaluation_only` is True or None: a file without the mark may still be known as test data in other ways.
    """
    path = folder / FETCH_FILE
    if not path.exists():
        return About()
    kinds = {"repository": str, "revision": str, "licence": str, "evaluation_only": bool, "files": list}
    record = _checked(path, kinds)
    marked = [one for one in record.get("files", []) if isinstance(one, dict) and one.get("evaluation_only") is True]
    held_out = record.get("evaluation_only") is True or file in [folder / str(one.get("path")) for one in marked]
    source = " at ".join(filter(None, (record.get("repository", ""), record.get("revision", "")[:12])))
    return About(source=source, licence=record.get("licence", ""), evaluation_only=held_out or None)


def _checked(path: Path, kinds: Mapping[str, type]) -> dict[str, Any]:
    document = read_json(path)
    if not isinstance(document, dict):
        raise ProblemError(Problem(file=str(path), reason="must be an object"))
    for field, kind in kinds.items():
        value = document.get(field, kind())
        if not isinstance(value, kind) or (isinstance(value, str) and text_fault(value)):
            raise ProblemError(Problem(file=str(path), field=field, reason=f"must be {_WORDS[kind]}"))
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The valid part of a data folder, and the problems of the rest.

    Attributes:
        dataset: All good tables, and all good questions about them.
        problems: Rows and tables that were left out, with the reason.
    """

    dataset: DataSet
    problems: tuple[Problem, ...]


def read_layout(folder: Path, skip_bad: bool = False, *, seed: int = 0, shares: SplitShares | None = None) -> DataSet:
    """Reads a data folder.

    Args:
        folder: Folder with `benchmark_questions/finqa.csv` and `input_companies/`.
        skip_bad: Leave out bad rows and tables, with a warning that counts them, instead of failing.
        seed: Seed of the split by company, for questions without one.
        shares: Shares of the split by company; the split of a company depends on its name and the seed only.

    Raises:
        DataError: Something is missing or malformed (file, row, field, reason), or nothing good is left.
    """
    reading = scan_layout(folder, seed=seed, shares=shares)
    if reading.problems and not skip_bad:
        check = f"finqa data check {shlex.quote(str(folder))}"
        rest = ", or --skip-bad to leave such rows out" if reading.dataset.questions else ""
        raise as_data_error(reading.problems, remedy=check + rest)
    if reading.problems:
        # Log: Data is read with `skip_bad`; `finqa data check` lists all rows.
        structlog.get_logger(__name__).warning(
            "malformed rows skipped", count=len(reading.problems), first=str(reading.problems[0])
        )
    if not reading.dataset.questions:
        where = folder / QUESTIONS_FILE
        raise as_data_error(reading.problems or [Problem(file=str(where), reason="it contains no question")])
    return reading.dataset


def scan_layout(folder: Path, *, seed: int = 0, shares: SplitShares | None = None) -> Reading:
    """Reads a data folder and collects its problems.

    Raises:
        DataError: A file that everything depends on is missing or unreadable.
    """
    _require_layout(folder)
    try:
        tables, problems = read_tables(folder)
        about = about_folder(folder)
        questions: list[Question] = []
        seen: set[str] = set()
        known = _Known(tables)
        for item in csv_rows(folder / QUESTIONS_FILE, required=REQUIRED_COLUMNS):
            if isinstance(item, Problem):
                problems.append(item)
                continue
            row, fields = item
            found = _check_fields(str(folder / QUESTIONS_FILE), row, fields, known, seen)
            if found:
                problems.append(found)
                continue
            seen.add(fields["id"])
            questions.append(_question(fields, seed, shares or SplitShares()))
    except ProblemError as error:
        raise as_data_error(
            [error.problem], remedy=f"correct it; or, for data in another layout, {advise_import(folder)}"
        ) from error
    boxed = any("\\boxed" in question.answer for question in questions)
    dataset = DataSet(
        tables=tuple(tables),
        questions=tuple(questions),
        source=about.source or (BOXED_SOURCE if boxed else folder.name),
        licence=about.licence or "unknown",
        evaluation_only=boxed if about.evaluation_only is None else about.evaluation_only,
        expert=about.expert,
        grader=about.grader,
    )
    return Reading(dataset=dataset, problems=tuple(problems))


def _require_layout(folder: Path) -> None:
    if not folder.exists():
        remedy = f"name a folder that exists; {IMPORTERS} lists the commands that write one"
        raise as_data_error([Problem(file=str(folder), reason="this data folder does not exist")], remedy=remedy)
    if not folder.is_dir():
        reason = "is a file, not a data folder"
        raise as_data_error([Problem(file=str(folder), reason=reason)], remedy=advise_import(folder))
    if files := split_files(folder):
        names = ", ".join(file.name for file in files)
        reason = f"is not a data folder: {QUESTIONS_FILE} is missing; its question files are {names}"
        found = advise_import(files[0])
        check = f"finqa data check {shlex.quote(str(files[0]))}"
        remedy = check if found == IMPORTERS else f"{check}; original FinQA: {found}"
        raise as_data_error([Problem(file=str(folder), reason=reason)], remedy=remedy)


class _Known:
    """Companies and tables that questions may refer to."""

    def __init__(self, tables: Collection[Table]) -> None:
        self.companies = {table.company for table in tables}
        self.tables = {(table.company, table.name) for table in tables}


def _check_fields(file: str, row: int, fields: dict[str, str], known: _Known, seen: set[str]) -> Problem | None:
    def problem(field: str, reason: str) -> Problem:
        return Problem(file=file, row=row, field=field, reason=reason)

    for column in ("id", "user_query", "company", "answer"):
        if not fields[column].strip():
            return problem(column, "must not be empty")
    if fields["id"] in seen:
        return problem("id", f"{fields['id']!r} occurs twice")
    if fields["company"] not in known.companies:
        return problem("company", f"there are no tables of {fields['company']!r}")
    for table in named_tables(fields.get("table_name", "")):
        if (fields["company"], table) not in known.tables:
            return problem("table_name", f"{fields['company']!r} has no table {table!r}")
    split = fields.get("split", "").strip().lower()
    if split and split not in SPLIT_NAMES:
        return problem("split", f"{split!r} is not one of train, dev, test")
    return None


def _question(fields: dict[str, str], seed: int, shares: SplitShares) -> Question:
    split = fields.get("split", "").strip().lower()
    return Question(
        id=fields["id"],
        company=fields["company"],
        question=fields["question"],
        user_query=fields["user_query"],
        answer=fields["answer"],
        split=SPLIT_NAMES[split] if split else split_of(fields["company"], seed, shares),
        type=fields.get("question_type", ""),
        explanation=fields.get("explanation", ""),
        table_name=fields.get("table_name", ""),
        gold_sql=fields.get("gold_sql", ""),
    )


SNORKEL_SOURCE = f"SnorkelFinance (https://huggingface.co/datasets/{SNORKEL_REPOSITORY})"
SNORKEL_LICENCE = "Apache-2.0"


def import_snorkel(folder: Path, *, skip_bad: bool = False) -> ImportReport:
    """Returns Snorkel's 290 questions. Their owner marks them "for evaluation only", so all of them go to the split
    `test`.

    Raises:
        DataError: Something is missing or malformed, or no question is left.
    """
    report = import_openenv(folder, skip_bad=skip_bad, evaluation_only=True)
    dataset = replace(report.dataset, source=SNORKEL_SOURCE, licence=SNORKEL_LICENCE)
    return replace(report, dataset=dataset)


def import_openenv(folder: Path, *, skip_bad: bool = False, evaluation_only: bool | None = None) -> ImportReport:
    r"""Imports a folder that the stock OpenEnv server reads; questions without a split are split by company.

    Args:
        folder: Folder with `benchmark_questions/finqa.csv` and `input_companies/`.
        skip_bad: Leave out bad rows and tables instead of failing.
        evaluation_only: Mark the data as not for training (all of it becomes `test`), or as trainable. None: as its
            `dataset.json` states, and without that only if answers are `\boxed`, as in Snorkel's data.

    Raises:
        DataError: Something is missing or malformed, or no question is left.
    """
    reading = scan_layout(folder)
    dataset = reading.dataset
    if evaluation_only if evaluation_only is not None else dataset.evaluation_only:
        dataset = for_evaluation(dataset)
    else:
        dataset = replace(dataset, evaluation_only=False)
    return finish_import(
        dataset,
        rows=len(dataset.questions) + sum(problem.row > 0 for problem in reading.problems),
        problems=reading.problems,
        skipped={},
        skip_bad=skip_bad,
        nothing=f"There is no valid question in {folder}.",
        remedy=f"finqa data check {shlex.quote(str(folder))}",
    )
