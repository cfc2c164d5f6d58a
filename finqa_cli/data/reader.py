"""Reads and checks a data folder in the layout of the OpenEnv FinQA environment (Snorkel's finqa-data)."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from finqa_cli.data.dataset import DataSet, Question, SplitShares, Table
from finqa_cli.data.layout import ABOUT_FILE, QUESTIONS_FILE, REQUIRED_COLUMNS
from finqa_cli.data.problems import Problem, ProblemError, as_data_error
from finqa_cli.data.table_files import read_json, read_tables

_SPLIT_NAMES = {"train": "train", "dev": "dev", "val": "dev", "validation": "dev", "test": "test"}
_FIELD_LIMIT = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A data folder as far as it is good.

    Attributes:
        dataset: All good tables, and all good questions about them.
        problems: What was left out, and why.
    """

    dataset: DataSet
    problems: tuple[Problem, ...]


def read_layout(folder: Path, skip_bad: bool = False, *, seed: int = 0, shares: SplitShares | None = None) -> DataSet:
    """Reads a data folder.

    Args:
        folder: Holds `benchmark_questions/finqa.csv` and `input_companies/`.
        skip_bad: Leave out bad rows and tables, with a warning that counts them, instead of failing.
        seed: Of the split by company, for questions without one.
        shares: Of the split by company; each company falls into a split by its name alone.

    Raises:
        DataError: Something is missing or malformed (file, row, field, reason), or nothing good is left.
    """
    reading = scan_layout(folder, seed=seed, shares=shares)
    if reading.problems and not skip_bad:
        raise as_data_error(reading.problems, remedy=f"finqa data check {folder}, or --skip-bad to leave such rows out")
    if reading.problems:
        structlog.get_logger(__name__).warning(
            "bad rows left out", count=len(reading.problems), first=str(reading.problems[0])
        )
    if not reading.dataset.questions:
        where = folder / QUESTIONS_FILE
        raise as_data_error(reading.problems or [Problem(file=str(where), reason="there is no question in it")])
    return reading.dataset


def scan_layout(folder: Path, *, seed: int = 0, shares: SplitShares | None = None) -> Reading:
    """Reads a data folder and collects its problems.

    Raises:
        DataError: A file that everything depends on is missing or unreadable.
    """
    if not folder.is_dir():
        remedy = f"finqa data generate --out {folder}"
        raise as_data_error([Problem(file=str(folder), reason="there is no such data folder")], remedy=remedy)
    try:
        tables, problems = read_tables(folder)
        about = _read_about(folder)
        questions: list[Question] = []
        seen: set[str] = set()
        known = _Known(tables)
        for row, fields in _csv_rows(folder / QUESTIONS_FILE):
            if isinstance(fields, Problem):
                problems.append(fields)
                continue
            found = _check_fields(str(folder / QUESTIONS_FILE), row, fields, known, seen)
            if found:
                problems.append(found)
                continue
            seen.add(fields["id"])
            questions.append(_question(fields, seed, shares or SplitShares()))
    except ProblemError as error:
        raise as_data_error([error.problem], remedy=f"finqa data check {folder}") from error
    boxed = any("\\boxed" in question.answer for question in questions)
    dataset = DataSet(
        tables=tuple(tables),
        questions=tuple(questions),
        source=str(about.get("source", "Snorkel finqa-data" if boxed else folder.name)),
        licence=str(about.get("licence", "unknown")),
        evaluation_only=bool(about.get("evaluation_only", boxed)),
    )
    return Reading(dataset=dataset, problems=tuple(problems))


class _Known:
    """What questions may refer to."""

    def __init__(self, tables: Collection[Table]) -> None:
        self.companies = {table.company for table in tables}
        self.tables = {(table.company, table.name) for table in tables}


def split_of(company: str, seed: int, shares: SplitShares) -> str:
    """The split that a company falls into by its name alone, whatever other companies there are."""
    digest = hashlib.sha256(f"{seed}:{company}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    if place < shares.train:
        return "train"
    return "dev" if place < shares.train + shares.dev else "test"


def _read_about(folder: Path) -> dict[str, object]:
    if not (folder / ABOUT_FILE).exists():
        return {}
    about = read_json(folder / ABOUT_FILE)
    if not isinstance(about, dict):
        raise ProblemError(Problem(file=str(folder / ABOUT_FILE), reason="must be an object"))
    return about


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str] | Problem]]:
    """Each row as (line, fields by column), or the problem that it is. Bad UTF-8 spoils only the rows that hold it."""
    try:
        text = path.read_bytes().decode("utf-8-sig", errors="surrogateescape")
    except FileNotFoundError as error:
        raise ProblemError(Problem(file=str(path), reason="the file is missing")) from error
    except OSError as error:
        raise ProblemError(Problem(file=str(path), reason=f"cannot be read: {error.strerror or error}")) from error
    csv.field_size_limit(_FIELD_LIMIT)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        missing = [column for column in REQUIRED_COLUMNS if column not in header]
        if missing:
            reason = f"the header lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
            raise ProblemError(Problem(file=str(path), row=1, field=missing[0], reason=reason))
        line = reader.line_num + 1
        for cells in reader:
            if cells:
                yield line, _fields(path, line, header, cells)
            line = reader.line_num + 1
    except csv.Error as error:
        raise ProblemError(Problem(file=str(path), row=reader.line_num, reason=f"is not valid CSV: {error}")) from error


def _fields(path: Path, line: int, header: list[str], cells: list[str]) -> dict[str, str] | Problem:
    if len(cells) != len(header):
        reason = f"ragged: {len(cells)} fields, but the header has {len(header)}"
        return Problem(file=str(path), row=line, reason=reason)
    fields = dict(zip(header, cells, strict=True))
    for column, value in fields.items():
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            return Problem(file=str(path), row=line, field=column, reason="is not valid UTF-8")
    return fields


def _check_fields(file: str, row: int, fields: dict[str, str], known: _Known, seen: set[str]) -> Problem | None:
    def problem(field: str, reason: str) -> Problem:
        return Problem(file=file, row=row, field=field, reason=reason)

    for column in ("id", "user_query", "company", "answer"):
        if not fields[column].strip():
            return problem(column, "must not be empty")
    if fields["id"] in seen:
        return problem("id", f"{fields['id']!r} comes twice")
    if fields["company"] not in known.companies:
        return problem("company", f"there are no tables of {fields['company']!r}")
    table = fields.get("table_name", "")
    if table and (fields["company"], table) not in known.tables:
        return problem("table_name", f"{fields['company']!r} has no table {table!r}")
    split = fields.get("split", "").strip().lower()
    if split and split not in _SPLIT_NAMES:
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
        split=_SPLIT_NAMES[split] if split else split_of(fields["company"], seed, shares),
        type=fields.get("question_type", ""),
        explanation=fields.get("explanation", ""),
        table_name=fields.get("table_name", ""),
        gold_sql=fields.get("gold_sql", ""),
    )
