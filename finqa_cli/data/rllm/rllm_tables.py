"""Reads the company tables of rLLM-FinQA, as its loader does (see `rllm_import`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.dataset import Table
from finqa_cli.data.openenv_layout.table_files import make_table
from finqa_cli.data.question_files.field_values import name_fault
from finqa_cli.data.question_files.read_files import parse_json, read_json

_SUMMARY = "tables_cleaned_all_companies.json"
_DERIVED = ("table", "column_names", "unique_vals_per_col", "company")
"""Keys of a table's description that follow from the table itself."""

_Raw = tuple[str, str, object, Mapping[str, object]]
"""File, place in it, the table's JSON value, its description."""


def read_company_tables(
    folder: Path,
) -> tuple[dict[tuple[str, str], Table], frozenset[tuple[str, str]], list[Problem]]:
    """All good tables by (company, name), the names of the empty ones, and the problems of the others.

    Raises:
        ProblemError: There is no such folder, or no company in it.
    """
    companies = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not companies:
        raise ProblemError(Problem(file=str(folder), reason="holds no folder per company, so there are no tables"))
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
