"""Tables of Excel workbooks, Parquet files and DuckDB files. Their readers are optional packages: finqa[tables]."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.question_files.read_files import parquet_rows
from finqa_cli.data.snapshots.compile import quote
from finqa_cli.errors import MissingDependencyError

Content = tuple[str, Sequence[object], Sequence[tuple[int, Sequence[object]]], str]
"""Name of the table inside the file (empty for a file with one table), header, rows with their numbers, title."""

MAX_ROWS = 1_000_000
_MAX_UNPACKED = 2**30
_BATCH = 1000


def parquet_table(path: Path) -> Iterator[Content]:
    """Yields the one table of a Parquet file.

    Raises:
        ProblemError: It is damaged, names a column twice, or has no row.
        MissingDependencyError: pyarrow is not installed.
    """
    _require("pyarrow", path)
    records = list(parquet_rows(path))
    if not records:
        raise ProblemError(Problem(file=str(path), reason="it contains no rows"))
    header = list(records[0])
    yield "", header, [(number, list(record.values())) for number, record in enumerate(records, start=1)], ""


def workbook_tables(path: Path) -> Iterator[Content]:
    """Yields a table for each non-empty sheet of an Excel workbook; the name of the only sheet is left out.

    The first row that is not empty is the header. A row with one filled cell above a row with several is the title. A
    formula has the value that the workbook stores for it.

    Raises:
        ProblemError: It is not a workbook, is encrypted or damaged, or a formula has no stored value (row and column).
        MissingDependencyError: openpyxl is not installed.
    """
    openpyxl = _require("openpyxl", path)
    _check_size(path)
    try:
        values = openpyxl.load_workbook(path, read_only=True, data_only=True)
        formulas = openpyxl.load_workbook(path, read_only=True, data_only=False)
    except Exception as error:  # openpyxl lets errors of zip, XML and its own parts escape
        reason = f"is not a readable Excel workbook: {' '.join(str(error).split())[:200]}"
        raise ProblemError(Problem(file=str(path), reason=reason)) from error
    try:
        sheets = [(sheet.title, _sheet(path, sheet, formulas[sheet.title])) for sheet in values.worksheets]
        found = [(name, *table) for name, table in sheets if table is not None]
    except ProblemError:
        raise
    except Exception as error:
        reason = f"is not a readable Excel workbook: {' '.join(str(error).split())[:200]}"
        raise ProblemError(Problem(file=str(path), reason=reason)) from error
    finally:
        values.close()
        formulas.close()
    if not found:
        raise ProblemError(Problem(file=str(path), reason="it contains no rows"))
    for name, header, rows, title in found:
        yield name if len(found) > 1 else "", header, rows, title


def _check_size(path: Path) -> None:
    """Raises a ProblemError for a file that is not an archive or unpacks to more than _MAX_UNPACKED bytes."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError) as error:
        reason = f"is not an Excel workbook (.xlsx), is damaged, or is protected by a password: {error}"
        raise ProblemError(Problem(file=str(path), reason=reason)) from error
    if size > _MAX_UNPACKED:
        raise ProblemError(
            Problem(file=str(path), reason=f"unpacks to {size} bytes, but at most {_MAX_UNPACKED} are supported")
        )


def _sheet(
    path: Path, sheet: Any, formulas: Any
) -> tuple[Sequence[object], list[tuple[int, Sequence[object]]], str] | None:
    where = f"{path}, {sheet.title}"
    sheet.reset_dimensions()  # the size that a file states may be wrong
    formulas.reset_dimensions()
    rows: list[tuple[int, list[object]]] = []
    pairs = zip(sheet.iter_rows(values_only=True), formulas.iter_rows(values_only=True), strict=False)
    for number, (cells, written) in enumerate(pairs, start=1):
        for place, (cell, text) in enumerate(zip(cells, written, strict=False)):
            if cell is None and isinstance(text, str) and text.startswith("="):
                reason = "the formula has no stored value; open the workbook in a spreadsheet program and save it"
                raise ProblemError(Problem(file=where, row=number, field=_letters(place), reason=reason))
        if any(cell is not None and cell != "" for cell in cells):
            rows.append((number, list(cells)))
        if len(rows) > MAX_ROWS:
            raise ProblemError(Problem(file=where, reason=f"has more than {MAX_ROWS} rows"))
    if not rows:
        return None
    title = ""
    while len(rows) > 1 and len(filled := _filled(rows[0][1])) == 1 and len(_filled(rows[1][1])) > 1:
        title = title or str(filled[0])
        rows = rows[1:]
    width = max(_last(cells) for _, cells in rows)
    padded: list[tuple[int, Sequence[object]]] = [(number, [*cells, *[None] * width][:width]) for number, cells in rows]
    return padded[0][1], padded[1:], title


def _filled(cells: Sequence[object]) -> list[object]:
    return [cell for cell in cells if cell is not None and cell != ""]


def _last(cells: Sequence[object]) -> int:
    return max((place for place, cell in enumerate(cells, start=1) if cell is not None and cell != ""), default=0)


def _letters(place: int) -> str:
    """Returns the name of a column, counted from 0, in a spreadsheet: A, B, ..., Z, AA."""
    letters = ""
    number = place + 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def duckdb_tables(path: Path) -> Iterator[Content]:
    """Yields the tables of a DuckDB file, which is opened for reading only; views are left out.

    Raises:
        ProblemError: The file is damaged, in use, or of another version.
        MissingDependencyError: duckdb is not installed.
    """
    duckdb = _require("duckdb", path)
    config = {"enable_external_access": "false", "autoload_known_extensions": "false"}
    try:
        with duckdb.connect(str(path), read_only=True, config=config) as database:
            query = (
                "SELECT table_schema, table_name FROM information_schema.tables "
                "WHERE table_type = 'BASE TABLE' ORDER BY table_schema, table_name"
            )
            for schema, name in database.execute(query).fetchall():
                cursor = database.execute(f"SELECT * FROM {quote(schema)}.{quote(name)}")
                header = [column[0] for column in cursor.description]
                rows: list[tuple[int, Sequence[object]]] = []
                while batch := cursor.fetchmany(_BATCH):
                    rows += enumerate(batch, start=len(rows) + 1)
                    if len(rows) > MAX_ROWS:
                        raise ProblemError(Problem(file=f"{path}, {name}", reason=f"has more than {MAX_ROWS} rows"))
                yield (name if schema == "main" else f"{schema}_{name}"), header, rows, ""
    except duckdb.Error as error:
        reason = f"is not a readable DuckDB file: {' '.join(str(error).split())[:300]}"
        raise ProblemError(Problem(file=str(path), reason=reason)) from error


def _require(package: str, path: Path) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        reason = f"Reading {path} needs {package}, which is not installed."
        raise MissingDependencyError(reason, remedy="pip install 'finqa[tables]'") from error
