"""Imports rLLM-FinQA (https://huggingface.co/datasets/rLLM/finqa), the trainable sibling of Snorkel's set.

Its archive unpacks to

    data/{train,val,test}_finqa.csv                        single-table questions
    data/multi_table_data/{train,val,test}_finqa.csv       multi-table questions
    data/company_tables/<company>/<table>.json
    data/company_tables/<company>/tables_cleaned_all_companies.json   {table: {"table": JSON text, "description", ...}}

Its loader (rllm-org/rllm, projects/finqa) reads the tables from the second form if it exists, names a blank column
`col_<place>` and leaves empty tables out; so does this import. Question files may be Parquet, JSON or JSONL, too.

| question        | column of the files | column after rLLM has registered them |
| --------------- | ------------------- | ------------------------------------- |
| `id`            | `id`                | `question_id`                         |
| `company`       | `company`           | `company`                             |
| `user_query`    | `user_query`        | `question`                            |
| `question`      | `question`          | `core_question`                       |
| `answer`        | `answer`            | `ground_truth`                        |
| `type`          | `question_type`     | `question_type`                       |
| `explanation`   | `explanation`       | `explanation`                         |
| `table_name`    | `table_name`: one name, or a list (JSON text in a CSV file) | the same |

Ids count from 0 in every file, so an imported id is `<split>_<id>`, with `multi_` before it for multi-table questions.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.data.data_problems import ImportReport, Problem, ProblemError, as_data_error, finish_import
from finqa_cli.data.dataset import DataSet, Question, Table, named_tables
from finqa_cli.data.openenv_layout.table_files import make_table
from finqa_cli.data.question_files.field_values import name_fault
from finqa_cli.data.question_files.question_rows import Row, read_rows
from finqa_cli.data.question_files.read_files import read_json
from finqa_cli.documents import parse_json
from finqa_cli.errors import DataError
from finqa_cli.grading import STRICT
from finqa_cli.types.splits import split_of_name

_SUMMARY = "tables_cleaned_all_companies.json"
_DERIVED = ("table", "column_names", "unique_vals_per_col", "company")
"""Keys of a table's description that follow from the table itself."""

_Raw = tuple[str, str, object, Mapping[str, object]]
"""File, key of the table inside it, JSON value of the table, description."""


def read_company_tables(
    folder: Path,
) -> tuple[dict[tuple[str, str], Table], frozenset[tuple[str, str]], list[Problem]]:
    """Returns all valid tables by (company, name), the keys of empty tables, and the problems of the others.

    Raises:
        ProblemError: The folder does not exist or contains no company.
    """
    companies = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not companies:
        raise ProblemError(Problem(file=str(folder), reason="contains no company folders, so there are no tables"))
    tables: dict[tuple[str, str], Table] = {}
    empty: set[tuple[str, str]] = set()
    problems: list[Problem] = []
    for company in companies:
        for name, raw in _raw_tables(company):
            if isinstance(raw, Problem):
                problems.append(raw)
                continue
            file, place, value, metadata = raw
            if not value:
                empty.add((company.name, name))
                continue
            try:
                table = make_table(file, company.name, name, _with_named_columns(value), metadata, place=place)
                tables[company.name, name] = table
            except ProblemError as error:
                problems.append(error.problem)
    return tables, frozenset(empty), problems


def _raw_tables(company: Path) -> Iterator[tuple[str, _Raw | Problem]]:
    summary = company / _SUMMARY
    try:
        if summary.exists():
            yield from _from_summary(summary)
            return
    except ProblemError as error:
        yield "", error.problem
        return
    for path in sorted(company.glob("*.json")):
        try:
            yield path.stem, (str(path), "", read_json(path), {})
        except ProblemError as error:
            yield path.stem, error.problem


def _from_summary(path: Path) -> Iterator[tuple[str, _Raw | Problem]]:
    described = read_json(path)
    if not isinstance(described, dict):
        raise ProblemError(Problem(file=str(path), reason="must be an object keyed by table"))
    for name, info in described.items():
        text = info.get("table") if isinstance(info, dict) else None
        if not isinstance(text, str):
            yield name, Problem(file=str(path), field=name, reason="must be an object with the table as JSON text")
        elif reason := name_fault(name):
            yield name, Problem(file=str(path), field=name[:80], reason=f"the table name {reason}")
        else:
            try:
                value = parse_json(text)
            except ValueError as error:
                yield name, Problem(file=str(path), field=f"{name}.table", reason=str(error))
            else:
                metadata = {key: item for key, item in info.items() if key not in _DERIVED}
                yield name, (str(path), name, value, metadata)


def _with_named_columns(value: object) -> object:
    if isinstance(value, dict):
        return {_column_name(key, place, value): cells for place, (key, cells) in enumerate(value.items())}
    if isinstance(value, list):
        return [_with_named_columns(row) if isinstance(row, dict) else row for row in value]
    return value


def _column_name(key: str, place: int, taken: Mapping[str, object]) -> str:
    name = f"col_{place}"
    return key if key.strip() or name in taken else name


SOURCE = "rLLM-FinQA (https://huggingface.co/datasets/rLLM/finqa)"
LICENCE = "Apache-2.0"
TABLE_FOLDERS = ("company_tables", "input_companies")
MULTI_TABLE_FOLDER = "multi_table_data"

COLUMNS: Mapping[str, str] = {
    "id": "id",
    "company": "company",
    "user_query": "user_query",
    "question": "question",
    "answer": "answer",
    "type": "question_type",
    "explanation": "explanation",
    "table_name": "table_name",
}
REGISTERED_COLUMNS: Mapping[str, str] = {
    **COLUMNS,
    "id": "question_id",
    "user_query": "question",
    "question": "core_question",
    "answer": "ground_truth",
}
REQUIRED = ("company", "user_query", "answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: Path
    split: str
    prefix: str


def import_rllm(folder: Path, *, tables: Path | None = None, skip_bad: bool = False) -> ImportReport:
    """Reads the questions with their own splits (`val` is our `dev`), and the tables of all companies.

    Args:
        folder: The unpacked archive, or its `data` folder.
        tables: The folder with one folder per company, if it is elsewhere.
        skip_bad: Leave out bad rows and tables instead of failing.

    Raises:
        DataError: A file is missing or lacks a column, a row or table is malformed, or a split has two files.
    """
    try:
        base = _base(folder)
        files = _question_files(base)
        where = tables or next(
            (base / name for name in TABLE_FOLDERS if (base / name).is_dir()), base / TABLE_FOLDERS[0]
        )
        good, empty, problems = read_company_tables(where)
        importer = _Importer(good, empty)
        for file in files:
            problems += importer.add_file(file)
    except ProblemError as error:
        raise as_data_error([error.problem], remedy="finqa data import rllm --help") from error
    dataset = DataSet(
        tables=tuple(good.values()),
        questions=tuple(importer.questions),
        source=SOURCE,
        licence=LICENCE,
        grader=STRICT,
    )
    nothing, remedy = f"There is no valid question in {base}.", "finqa data import rllm --help"
    return finish_import(
        dataset,
        rows=importer.rows,
        problems=problems,
        skipped=importer.skipped,
        skip_bad=skip_bad,
        nothing=nothing,
        remedy=remedy,
    )


class _Importer:
    def __init__(self, tables: Mapping[tuple[str, str], Table], empty: frozenset[tuple[str, str]]) -> None:
        self.rows = 0
        self.questions: list[Question] = []
        self.skipped: Counter[str] = Counter()
        self._tables = tables
        self._empty = empty
        self._companies = {company for company, _ in tables}
        self._ids: set[str] = set()

    def add_file(self, file: _File) -> list[Problem]:
        """Adds the valid questions of a file and returns the problems of the other rows.

        Raises:
            ProblemError: The file is unreadable or lacks a column.
        """
        problems: list[Problem] = []
        columns: Mapping[str, str] | None = None
        for item in read_rows(file.path):
            self.rows += 1
            if isinstance(item, Problem):
                problems.append(item)
                continue
            columns = columns or _columns(file.path, item[1])
            try:
                self._add(file, columns, item)
            except ProblemError as error:
                problems.append(error.problem)
        return problems

    def _add(self, file: _File, columns: Mapping[str, str], row: Row) -> None:
        number, fields = row

        def problem(name: str, reason: str) -> ProblemError:
            return ProblemError(Problem(file=str(file.path), row=number, field=columns[name], reason=reason))

        def text(name: str) -> str:
            value = fields.get(columns[name])
            if isinstance(value, list | dict | bool):
                raise problem(name, "must be a text")
            return "" if value is None else str(value).strip()

        for name in REQUIRED:
            if not text(name):
                raise problem(name, "must not be empty")
        identity = f"{file.prefix}{text('id') or number - 1}"
        if identity in self._ids:
            raise problem("id", f"{text('id')!r} occurs twice")
        company = text("company") if text("company") in self._companies else text("company").lower()
        if company not in self._companies:
            raise problem("company", f"there are no tables of {text('company')!r}")
        names = _table_names(fields.get(columns["table_name"]))
        if names is None:
            raise problem("table_name", "must be a name or a list of names")
        for name in names:
            if (company, name) in self._empty:
                self.skipped["its table is empty"] += 1
                return
            if (company, name) not in self._tables:
                raise problem("table_name", f"{company!r} has no table {name!r}")
        self._ids.add(identity)
        self.questions.append(
            Question(
                id=identity,
                company=company,
                question=text("question") or text("user_query"),
                user_query=text("user_query"),
                answer=text("answer"),
                split=file.split,
                type=text("type"),
                explanation=text("explanation"),
                table_name=names[0] if len(names) == 1 else json.dumps(names) if names else "",
            )
        )


def _base(folder: Path) -> Path:
    if not folder.is_dir():
        raise ProblemError(Problem(file=str(folder), reason="this folder does not exist"))
    return folder / "data" if not list(_named_files(folder)) and (folder / "data").is_dir() else folder


def _question_files(base: Path) -> Sequence[_File]:
    found = [
        _File(path=path, split=split_of_name(path), prefix=f"{'multi_' * multi}{split_of_name(path)}_")
        for multi, folder in enumerate((base, base / MULTI_TABLE_FOLDER))
        for path in _named_files(folder)
    ]
    if not found:
        reason = "contains no question file such as train_finqa.csv, val_finqa.csv or test_finqa.csv"
        raise ProblemError(Problem(file=str(base), reason=reason))
    forms: dict[str, _File] = {}
    for file in found:
        other = forms.setdefault(file.prefix, file)
        if other.path.suffix != file.path.suffix:
            reason = f"{other.path.name} and {file.path.name} both contain the split {file.split}; keep one of them"
            move = f"mv {shlex.quote(str(file.path))} {shlex.quote(f'{file.path}.unused')}"
            raise DataError(f"{base}: {reason}.", remedy=move)
    return found


def _named_files(folder: Path) -> Iterator[Path]:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return (path for path in files if path.suffix in (".csv", ".parquet", ".json", ".jsonl") and _is_questions(path))


def _is_questions(path: Path) -> bool:
    return bool(split_of_name(path)) and not path.name.startswith(".") and not path.is_dir()


def _columns(path: Path, fields: Mapping[str, object]) -> Mapping[str, str]:
    columns = REGISTERED_COLUMNS if "core_question" in fields else COLUMNS
    missing = [columns[name] for name in REQUIRED if columns[name] not in fields]
    if missing:
        reason = f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; it has: {', '.join(fields)}"
        raise ProblemError(Problem(file=str(path), field=missing[0], reason=reason))
    return columns


def _table_names(value: object) -> list[str] | None:
    if value is None:
        return []
    if isinstance(value, str):
        return list(named_tables(value))
    if isinstance(value, list) and all(isinstance(name, str) and name.strip() for name in value):
        return [name.strip() for name in value]
    return None
