"""Reads the tables of a data folder: `input_companies/<company>/<table>.json` and their descriptions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from finqa_cli.data.dataset import Cell, Table
from finqa_cli.data.layout import COMPANIES_FOLDER, TABLES_FILE
from finqa_cli.data.problems import Problem, ProblemError

_LARGEST_INTEGER = 2**63


def read_tables(folder: Path) -> tuple[list[Table], list[Problem]]:
    """All good tables of a data folder, and the problems of the others.

    Raises:
        ProblemError: A file or folder that everything depends on is missing or unreadable.
    """
    companies = folder / COMPANIES_FOLDER
    if not companies.is_dir():
        raise ProblemError(Problem(file=str(companies), reason="the folder is missing"))
    descriptions = read_json(folder / TABLES_FILE)
    if not isinstance(descriptions, dict):
        raise ProblemError(Problem(file=str(folder / TABLES_FILE), reason="must be an object keyed by company/table"))
    tables: list[Table] = []
    problems: list[Problem] = []
    for path in sorted(companies.glob("*/*.json")):
        try:
            tables.append(_read_table(path, descriptions))
        except ProblemError as error:
            problems.append(error.problem)
    return tables, problems


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        ProblemError: It is missing, unreadable or not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ProblemError(Problem(file=str(path), reason="the file is missing")) from error
    except OSError as error:
        raise ProblemError(Problem(file=str(path), reason=f"cannot be read: {error.strerror or error}")) from error
    except UnicodeDecodeError as error:
        row = error.object.count(b"\n", 0, error.start) + 1
        raise ProblemError(Problem(file=str(path), row=row, reason="is not valid UTF-8")) from error


def read_json(path: Path) -> object:
    """The JSON value in a file.

    Raises:
        ProblemError: It is missing, unreadable, or not JSON.
    """
    try:
        value: object = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        reason = f"is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise ProblemError(Problem(file=str(path), reason=reason)) from error
    except (ValueError, RecursionError) as error:
        raise ProblemError(Problem(file=str(path), reason=f"is not readable JSON: {error}")) from error
    return value


def _read_table(path: Path, descriptions: Mapping[str, object]) -> Table:
    company, name = path.parent.name, path.stem
    records = _as_records(path, read_json(path))
    if not records:
        raise ProblemError(Problem(file=str(path), reason="the table has no rows"))
    columns = tuple(records[0])
    _check_columns(path, columns)
    rows = tuple(_row(path, number, record, columns) for number, record in enumerate(records, start=1))
    description = descriptions.get(f"{company}/{name}", {})
    if not isinstance(description, dict):
        file = str(path.parent.parent / Path(TABLES_FILE).name)
        raise ProblemError(Problem(file=file, field=f"{company}/{name}", reason="must be an object"))
    metadata = {key: value for key, value in description.items() if key != "table"}
    return Table(company=company, name=name, columns=columns, rows=rows, metadata=metadata)


def _as_records(path: Path, value: object) -> list[dict[str, object]]:
    """Rows as a list of records; the other form that pandas writes, columns of `{row: cell}`, is turned around."""
    if isinstance(value, dict) and value and all(isinstance(column, dict | list) for column in value.values()):
        columns = {key: list(cells.values()) if isinstance(cells, dict) else cells for key, cells in value.items()}
        lengths = {key: len(cells) for key, cells in columns.items()}
        first = next(iter(lengths.values()))
        for key, length in lengths.items():
            if length != first:
                reason = f"ragged: this column has {length} cells, the first has {first}"
                raise ProblemError(Problem(file=str(path), field=key, reason=reason))
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    if not isinstance(value, list):
        raise ProblemError(Problem(file=str(path), reason="must be a list of row objects"))
    for number, record in enumerate(value, start=1):
        if not isinstance(record, dict):
            raise ProblemError(Problem(file=str(path), row=number, reason="must be an object"))
    return value


def _check_columns(path: Path, columns: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for column in columns:
        if not column.strip() or column.casefold() in seen:
            reason = "a column name is empty" if not column.strip() else "the column name comes twice (case is ignored)"
            raise ProblemError(Problem(file=str(path), field=column, reason=reason))
        seen.add(column.casefold())
    if not columns:
        raise ProblemError(Problem(file=str(path), row=1, reason="the row has no cells"))


def _row(path: Path, number: int, record: Mapping[str, object], columns: tuple[str, ...]) -> tuple[Cell, ...]:
    if set(record) != set(columns):
        odd = sorted(set(record) ^ set(columns))[0]
        reason = "ragged: this cell is missing" if odd in columns else "ragged: the first row has no such column"
        raise ProblemError(Problem(file=str(path), row=number, field=odd, reason=reason))
    return tuple(_cell(path, number, column, record[column]) for column in columns)


def _cell(path: Path, number: int, column: str, value: object) -> Cell:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if abs(value) < _LARGEST_INTEGER else float(value) if abs(value) < 10**300 else str(value)
    if value is None or isinstance(value, str):
        return value
    raise ProblemError(Problem(file=str(path), row=number, field=column, reason="a cell must be a text or a number"))
