"""Reads the tables of a data folder: `input_companies/<company>/<table>.json` and their descriptions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.dataset import Cell, Table
from finqa_cli.data.openenv_layout.layout import COMPANIES_FOLDER, TABLES_FILE
from finqa_cli.data.question_files.field_values import MAX_COLUMNS, first_fault, repeated, text_fault
from finqa_cli.data.question_files.read_files import read_json

_LARGEST_INTEGER = 2**63


def read_tables(folder: Path) -> tuple[list[Table], list[Problem]]:
    """Returns all valid tables of a data folder, and the problems of the others.

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


def make_table(
    file: str, company: str, name: str, value: object, metadata: Mapping[str, object], *, place: str = ""
) -> Table:
    """Returns a table from its JSON value: a list of row objects, or an object of columns.

    `{}` and `[]` are tables without columns and rows, as are 137 of Snorkel's 783 tables.

    Args:
        file: File of the value, for problems.
        company: Company of the table.
        name: Name of the table.
        value: Result of `json.loads`.
        metadata: What get_table_info returns in addition to the columns.
        place: Key inside the file, for problems, if the file has several tables.

    Raises:
        ProblemError: The table has columns but no rows, is ragged, or contains an unsupported column or cell.
    """
    reader = _TableReader(file, place)
    records = reader.records(value)
    if value and not records:
        raise reader.problem("the table has columns but no rows")
    columns = tuple(records[0]) if records else ()
    if records:
        reader.check_columns(columns)
    rows = tuple(reader.row(number, record, columns) for number, record in enumerate(records, start=1))
    if fault := first_fault(metadata):
        raise ProblemError(Problem(file=file, field=f"{company}/{name}.{fault[0]}", reason=fault[1]))
    return Table(company=company, name=name, columns=columns, rows=rows, metadata=metadata)


def _read_table(path: Path, descriptions: Mapping[str, object]) -> Table:
    company, name = path.parent.name, path.stem
    description = descriptions.get(f"{company}/{name}", {})
    if not isinstance(description, dict):
        file = str(path.parent.parent / Path(TABLES_FILE).name)
        raise ProblemError(Problem(file=file, field=f"{company}/{name}", reason="must be an object"))
    metadata = {key: value for key, value in description.items() if key != "table"}
    return make_table(str(path), company, name, read_json(path), metadata)


class _TableReader:
    """Reads a table from a JSON value; a malformed part is a problem with file, row and field."""

    def __init__(self, file: str, place: str) -> None:
        self._file = file
        self._place = place

    def problem(self, reason: str, *, row: int = 0, field: str = "") -> ProblemError:
        where = ".".join(part for part in (self._place, field) if part)
        return ProblemError(Problem(file=self._file, row=row, field=where, reason=reason))

    def records(self, value: object) -> list[dict[str, object]]:
        """Returns rows as records. The other form that pandas writes, columns of `{row: cell}`, is transposed."""
        if isinstance(value, dict) and all(isinstance(column, dict | list) for column in value.values()):
            columns = {key: list(cells.values()) if isinstance(cells, dict) else cells for key, cells in value.items()}
            first = len(next(iter(columns.values()), ()))
            for key, cells in columns.items():
                if len(cells) != first:
                    reason = f"ragged: this column has {len(cells)} cells, the first has {first}"
                    raise self.problem(reason, field=key)
            return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
        if not isinstance(value, list):
            raise self.problem("must be a list of row objects")
        for number, record in enumerate(value, start=1):
            if not isinstance(record, dict):
                raise self.problem("must be an object", row=number)
        return value

    def check_columns(self, columns: tuple[str, ...]) -> None:
        if not columns:
            raise self.problem("the row has no cells", row=1)
        if len(columns) > MAX_COLUMNS:
            raise self.problem(f"has {len(columns)} columns, but at most {MAX_COLUMNS} are supported")
        for column in columns:
            if not column.strip():
                raise self.problem("a column name is empty", field=column)
            if reason := text_fault(column):
                raise self.problem(f"a column name {reason}")
        if twice := repeated(columns):
            raise self.problem("the column name occurs twice (ignoring case)", field=twice)

    def row(self, number: int, record: Mapping[str, object], columns: tuple[str, ...]) -> tuple[Cell, ...]:
        if set(record) != set(columns):
            odd = sorted(set(record) ^ set(columns))[0]
            reason = (
                "ragged: this cell is missing" if odd in columns else "ragged: the first row does not have this column"
            )
            raise self.problem(reason, row=number, field=odd)
        return tuple(self._cell(number, column, record[column]) for column in columns)

    def _cell(self, number: int, column: str, value: object) -> Cell:
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, int):
            return value if abs(value) < _LARGEST_INTEGER else float(value) if abs(value) < 10**300 else str(value)
        if isinstance(value, str) and (reason := text_fault(value)):
            raise self.problem(reason, row=number, field=column)
        if value is None or isinstance(value, str):
            return value
        raise self.problem("a cell must be a text or a number", row=number, field=column)
