"""Tables of Excel workbooks, Parquet files and DuckDB files. Their readers are optional packages: finqa[tables]."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.own_tables.table_budget import Budget, Content
from finqa_cli.data.own_tables.table_region import FIRST_COLUMN, Grid
from finqa_cli.data.question_files.read_files import parquet_rows
from finqa_cli.data.snapshots.compile import quote
from finqa_cli.errors import MissingDependencyError

_MAX_UNPACKED = 2**30
_BATCH = 1000
_CHUNK = 2**20
_MERGED = re.compile(rb"mergeCell\s[^>]{0,80}?ref=[\"']([A-Z]{1,3})([0-9]{1,7}):([A-Z]{1,3})([0-9]{1,7})[\"']")
_MOST_COPIES = 1_000_000


def parquet_table(path: Path) -> Iterator[Content]:
    """Yields the one table of a Parquet file. The index of a data frame, if it has one, is the first column.

    Raises:
        ProblemError: It is damaged or too large, names a column twice, or has no row.
        MissingDependencyError: pyarrow is not installed.
    """
    _require("pyarrow", path)
    parquet = import_module("pyarrow.parquet")
    budget = Budget(str(path))
    rows: list[list[object]] = []
    header: list[str] = []
    for record in parquet_rows(path):
        header = header or list(record)
        budget.spend(list(record.values()))
        rows.append(list(record.values()))
    if not rows:
        raise ProblemError(Problem(file=str(path), reason="it contains no rows"))
    about = parquet.read_schema(path).pandas_metadata or {}
    index = [name for name in about.get("index_columns", []) if isinstance(name, str) and name in header]
    names = [*index, *(name for name in header if name not in index)]
    places = [header.index(name) for name in names]
    shown = [FIRST_COLUMN if name == "__index_level_0__" else name for name in names]
    ordered = [(number, [cells[place] for place in places]) for number, cells in enumerate(rows, start=1)]
    yield Content(name="", header=tuple(shown), rows=ordered)


def workbook_tables(path: Path) -> Iterator[Content]:
    """Yields the cells of each non-empty sheet of an Excel workbook; the name of the only sheet is left out.

    A formula has the value that the workbook stores for it.

    Raises:
        ProblemError: It is not a workbook, is encrypted, damaged or too large, or a formula has no stored value (row
            and column).
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
        found = [(name, grid) for name, grid in sheets if grid is not None]
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
    for name, grid in found:
        yield Content(name=name if len(found) > 1 else "", grid=grid)


def _check_size(path: Path) -> None:
    """Raises a ProblemError for a file that is not an archive or unpacks to more than _MAX_UNPACKED bytes."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, OSError) as error:  # the second: of a later version of zip
        reason = f"is not an Excel workbook (.xlsx), is damaged, or is protected by a password: {error}"
        raise ProblemError(Problem(file=str(path), reason=reason)) from error
    if size > _MAX_UNPACKED:
        raise ProblemError(
            Problem(file=str(path), reason=f"unpacks to {size} bytes, but at most {_MAX_UNPACKED} are supported")
        )


def _sheet(path: Path, sheet: Any, formulas: Any) -> Grid | None:
    where = f"{path}, {sheet.title}"
    sheet.reset_dimensions()  # the size that a file states may be wrong
    formulas.reset_dimensions()
    grid = Grid([], [])
    budget = Budget(where)
    pairs = zip(sheet.iter_rows(values_only=True), formulas.iter_rows(values_only=True), strict=False)
    for number, (cells, written) in enumerate(pairs, start=1):
        for place, (cell, text) in enumerate(zip(cells, written, strict=False)):
            if cell is None and isinstance(text, str) and text.startswith("="):
                reason = "the formula has no stored value; open the workbook in a spreadsheet program and save it"
                raise ProblemError(Problem(file=where, row=number, field=_letters(place), reason=reason))
        kept = list(cells)
        while kept and kept[-1] in (None, ""):
            kept.pop()
        budget.spend(kept)
        grid.numbers.append(number)
        grid.rows.append(kept)
    width = max(map(len, grid.rows), default=0)
    if not width:
        return None
    grid.rows = [[*cells, *[None] * (width - len(cells))] for cells in grid.rows]
    _copy_merged(path, sheet, grid, width)
    return grid


def _copy_merged(path: Path, sheet: Any, grid: Grid, width: int) -> None:
    """Puts the value of each merged cell into all places that it covers.

    In the mode that reads row by row, openpyxl leaves out merged cells, so they are read from the sheet's XML.
    """
    part = str(getattr(sheet, "_worksheet_path", "")).lstrip("/")
    found: list[tuple[bytes, ...]] = []
    with zipfile.ZipFile(path) as archive:
        if part not in archive.namelist():
            return
        with archive.open(part) as file:
            rest = b""
            while chunk := file.read(_CHUNK):
                data = rest + chunk
                matches = list(_MERGED.finditer(data))
                found += [match.groups() for match in matches]
                rest = data[max(matches[-1].end() if matches else 0, len(data) - 200) :]
    for left, top, right, bottom in found:
        first, column = int(top) - 1, _column(left)
        end, last = min(int(bottom), len(grid.rows)), min(_column(right) + 1, width)
        if first >= len(grid.rows) or column >= width or grid.rows[first][column] is None:
            continue
        if len(grid.copies) + (end - first) * (last - column) > _MOST_COPIES:
            raise ProblemError(Problem(file=f"{path}, {sheet.title}", reason="has too many merged cells"))
        for row in range(first, end):
            for place in range(column, last):
                if (row, place) != (first, column) and grid.rows[row][place] is None:
                    grid.rows[row][place] = grid.rows[first][column]
                    grid.copies[row, place] = (first, column)


def _column(letters: bytes) -> int:
    place = 0
    for letter in letters.decode():
        place = 26 * place + ord(letter) - ord("A") + 1
    return place - 1


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
                budget = Budget(f"{path}, {name}")
                while batch := cursor.fetchmany(_BATCH):
                    for cells in batch:
                        budget.spend(cells)
                    rows += enumerate(batch, start=len(rows) + 1)
                shown = name if schema == "main" else f"{schema}_{name}"
                yield Content(name=shown, header=tuple(header), rows=rows)
    except duckdb.Error as error:
        reason = f"is not a readable DuckDB file: {' '.join(str(error).split())[:300]}"
        raise ProblemError(Problem(file=str(path), reason=reason)) from error


def _require(package: str, path: Path) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        reason = f"Reading {path} needs {package}, which is not installed."
        raise MissingDependencyError(reason, remedy="pip install 'finqa[tables]'") from error
