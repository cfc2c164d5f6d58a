"""Finds the tables of a source: files in a folder, or the tables of one database file. Cells are not converted."""

from __future__ import annotations

import difflib
import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.own_tables.header_lines import Row, count_header_rows, is_header_line, join_header
from finqa_cli.data.own_tables.workbook_tables import Content, duckdb_tables, parquet_table, workbook_tables
from finqa_cli.data.question_files.question_rows import csv_cells, read_rows
from finqa_cli.data.question_files.read_files import read_text, require_file
from finqa_cli.documents import parse_json

MAX_FILES = 20_000
MAX_ROWS = 1_000_000
WITH_HEADER_LINES = (".csv", ".tsv", ".xlsx")
"""Kinds of files whose header may have several lines."""
DATABASES = (".sqlite", ".sqlite3", ".db", ".duckdb")
_SEPARATORS = ",;\t"
_LINES_ABOVE = 3
"""Number of lines above a header, such as a title, that may lack a separator."""
_SQLITE_MAGIC = b"SQLite format 3\0"
_DUCKDB_MAGIC = b"DUCK"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTable:
    """One table as it was found.

    Attributes:
        file: Path, with the name of the sheet or table if the file contains several.
        folder: First folder below the source; empty for a file directly in it, and for databases.
        stem: Name of the file without its ending.
        name: Name of the table, made from the path below that folder and the name of the sheet or table.
        header: Names of the columns.
        rows: Pairs of row number, as the user counts it, and [C] cells.
        title: Title above the header, in a CSV file or workbook.
        header_rows: Number of lines that the names of the columns were joined from.
    """

    file: str
    folder: str
    stem: str
    name: str
    header: Sequence[object]
    rows: Sequence[tuple[int, Sequence[object]]]
    title: str = ""
    header_rows: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is in a source.

    Attributes:
        tables: Readable tables, in order of their paths.
        problems: Files and tables that cannot be read.
        ignored: Files of other kinds.
    """

    tables: tuple[RawTable, ...]
    problems: tuple[Problem, ...]
    ignored: tuple[str, ...]


def find_tables(source: Path, leave_out: Sequence[Path] = (), header_rows: int = 0) -> Found:
    """Reads all tables of a folder, of a single file, or of a SQLite or DuckDB file.

    Args:
        source: Folder, file of a table, or database file.
        leave_out: Files of the folder that are not tables, such as the file of the questions.
        header_rows: Lines of the header in CSV files and workbooks; 0: see `count_header_rows`.

    Raises:
        ProblemError: The source is missing, is of another kind, or contains no table.
        MissingDependencyError: It contains Parquet, Excel or DuckDB files, and their reader is not installed.
    """
    problems: list[Problem] = []
    ignored: list[str] = []
    if not source.exists():
        beside = [path.name for path in source.parent.iterdir()] if source.parent.is_dir() else []
        near = difflib.get_close_matches(source.name, beside, n=1)
        hint = f"; near it: {str(source.parent / near[0])!r}" if near else ""
        raise ProblemError(Problem(file=str(source), reason=f"there is no such file or folder{hint}"))
    if source.is_dir():
        found = list(_of_folder(source, {path.resolve() for path in leave_out}, problems, ignored, header_rows))
    elif is_table_file(source):
        found = list(_of_files([source], source.parent, problems, ignored, header_rows))
    else:
        found = list(_of_database(source, problems))
    if not found and not problems:
        others = f"; files of other types: {', '.join(ignored[:3])}" if ignored else ""
        raise ProblemError(Problem(file=str(source), reason=f"it contains no tables ({_kinds()}){others}"))
    return Found(tables=tuple(found), problems=tuple(problems), ignored=tuple(ignored))


def _kinds() -> str:
    return f"finqa reads {', '.join(_READERS)} in a folder, or one file {', '.join(DATABASES)}"


def is_table_file(path: Path) -> bool:
    """Returns whether a file has the ending of a supported table format and is not hidden."""
    return path.suffix.lower() in _READERS and not path.name.startswith((".", "~$")) and path.is_file()


def is_table_name(name: str) -> bool:
    """Returns whether a name has the ending of a supported table format."""
    return Path(name).suffix.lower() in _READERS


def is_database(path: Path) -> bool:
    """Returns whether a file is a SQLite or DuckDB file, judged by its first bytes."""
    try:
        if not path.is_file():  # opening a pipe would wait forever
            return False
        with path.open("rb") as file:
            start = file.read(16)
    except OSError:
        return False
    return start == _SQLITE_MAGIC or start[8:12] == _DUCKDB_MAGIC


def _of_folder(
    folder: Path, leave_out: set[Path], problems: list[Problem], ignored: list[str], header_rows: int
) -> Iterator[RawTable]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() or path.suffix.lower() in _READERS)
    if len(paths) > MAX_FILES:
        reason = f"contains {len(paths)} files, but at most {MAX_FILES} are supported"
        raise ProblemError(Problem(file=str(folder), reason=reason))
    shown = [path for path in paths if not any(part.startswith((".", "~$")) for part in path.relative_to(folder).parts)]
    tables = [path for path in shown if path.resolve() not in leave_out]
    yield from _of_files(tables, folder, problems, ignored, header_rows)


def _of_files(
    paths: Sequence[Path], folder: Path, problems: list[Problem], ignored: list[str], header_rows: int
) -> Iterator[RawTable]:
    for path in paths:
        parts = path.relative_to(folder).parts
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            ignored.append(str(path))
            continue
        place = "_".join((*parts[1:-1], path.stem))
        try:
            require_file(path)
            for name, header, rows, title in reader(path):
                lines = _count_lines(path, header, rows, header_rows)
                upper = [header, *(cells for _, cells in rows[: lines - 1])]
                yield RawTable(
                    file=f"{path}, {name}" if name else str(path),
                    folder=parts[0] if len(parts) > 1 else "",
                    stem=path.stem,
                    name=f"{place}_{name}" if name else place,
                    header=join_header(upper) if lines > 1 else header,
                    rows=rows[lines - 1 :],
                    title=title,
                    header_rows=lines,
                )
        except ProblemError as error:
            problems.append(error.problem)


def _count_lines(path: Path, header: Sequence[object], rows: Sequence[Row], header_rows: int) -> int:
    if path.suffix.lower() not in WITH_HEADER_LINES:
        return 1
    lines = header_rows or count_header_rows(header, rows)
    if lines > len(rows) + 1:
        reason = f"has {len(rows) + 1} rows, fewer than its header (--header-rows {lines})"
        raise ProblemError(Problem(file=str(path), reason=reason))
    return lines


def _of_database(path: Path, problems: list[Problem]) -> Iterator[RawTable]:
    require_file(path)
    with path.open("rb") as file:
        start = file.read(16)
    if start == _SQLITE_MAGIC:
        content = sqlite_tables(path, problems)
    elif start[8:12] == _DUCKDB_MAGIC:
        content = duckdb_tables(path)
    else:
        reason = f"is not a SQLite or DuckDB file; {_kinds()}"
        raise ProblemError(Problem(file=str(path), reason=reason))
    for name, header, rows, title in content:
        yield RawTable(
            file=f"{path}, {name}", folder="", stem=path.stem, name=name, header=header, rows=rows, title=title
        )


def sqlite_tables(path: Path, problems: list[Problem]) -> Iterator[Content]:
    """Yields the tables of a SQLite file, which is opened for reading only; views and virtual tables are left out.

    Raises:
        ProblemError: The file is damaged.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.text_factory = lambda data: data.decode(errors="surrogateescape")
            database.execute("PRAGMA trusted_schema=OFF")
            query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 ORDER BY name"
            names = [name for (name,) in database.execute(query) if not name.lower().startswith("sqlite_")]
            for name in names:
                try:
                    cursor = database.execute(f'SELECT * FROM "{name.replace(chr(34), chr(34) * 2)}"')
                    header = [column[0] for column in cursor.description]
                    rows = list(enumerate(cursor.fetchmany(MAX_ROWS), start=1))
                    if cursor.fetchone() is not None:
                        problems.append(Problem(file=f"{path}, {name}", reason=f"has more than {MAX_ROWS} rows"))
                        continue
                except sqlite3.Error as error:
                    problems.append(Problem(file=f"{path}, {name}", reason=f"cannot be read: {error}"))
                    continue
                yield name, header, rows, ""
    except sqlite3.Error as error:
        raise ProblemError(Problem(file=str(path), reason=f"is not a readable SQLite file: {error}")) from error


def csv_table(path: Path) -> Iterator[Content]:
    """Yields the one table of a CSV file; see `separator_of` for its separator.

    A line with one filled cell above a line of names is the title.

    Raises:
        ProblemError: The file is unreadable, empty, or ragged.
    """
    lines = iter(csv_cells(path, separator_of(path)))
    _, header = next(lines, (0, []))
    if not header:
        raise ProblemError(Problem(file=str(path), reason="is empty"))
    title = ""
    filled = [cell for cell in header if cell.strip()]
    if len(filled) == 1 and (below := next(lines, None)) is not None:
        if is_header_line(below[1]):
            title, header = filled[0].strip(), below[1]
        else:
            lines = itertools.chain([below], lines)
    width = len(header)
    rows: list[tuple[int, Sequence[object]]] = []
    for line, cells in lines:
        while len(cells) > width and not cells[-1].strip():
            cells.pop()
        if len(cells) != width:
            reason = f"ragged: {len(cells)} fields, but the header has {width}"
            raise ProblemError(Problem(file=str(path), row=line, reason=reason))
        rows.append((line, cells))
    yield "", header, rows, title


def separator_of(path: Path) -> str:
    """Returns the most frequent of comma, semicolon and tab in the header of a CSV file; a title above is skipped.

    Raises:
        ProblemError: The path is not a regular file.
    """
    require_file(path)
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        lines = [file.readline(1_000_000) for _ in range(_LINES_ABOVE + 1)]
    header = next((line for line in lines if any(mark in line for mark in _SEPARATORS)), "")
    return max(_SEPARATORS, key=lambda mark: (header.count(mark), mark == ","))


def json_table(path: Path) -> Iterator[Content]:
    """Yields the one table of a JSON file, in one of the forms that pandas writes.

    These are a list of row objects, an object of columns, `{"columns": [...], "data": [[...], ...]}`, or a list of
    lists, the header first.

    Raises:
        ProblemError: The file is unreadable, has another form, is ragged, or repeats a key in an object.
    """
    try:
        value = parse_json(read_text(path), unique=True)
    except ValueError as error:
        raise ProblemError(Problem(file=str(path), reason=str(error))) from error
    if isinstance(value, dict) and isinstance(value.get("columns"), list) and isinstance(value.get("data"), list):
        value = [value["columns"], *value["data"]]
    if isinstance(value, dict):
        value = _turned(path, value)
    if not isinstance(value, list) or not value:
        reason = "must be a list of row objects, an object of columns, or a list of lists"
        raise ProblemError(Problem(file=str(path), reason="it contains no rows" if value == [] else reason))
    yield _of_lists(path, value) if isinstance(value[0], list) else _of_records(path, value)


def _turned(path: Path, value: Mapping[str, object]) -> list[dict[str, object]]:
    """Returns the row objects of a table whose columns are lists of cells or objects `{row: cell}`."""
    columns: dict[str, list[object]] = {}
    for key, cells in value.items():
        if not isinstance(cells, dict | list):
            reason = "must be a list of row objects or an object of columns, but this key contains neither"
            raise ProblemError(Problem(file=str(path), field=key, reason=reason))
        columns[key] = list(cells.values()) if isinstance(cells, dict) else cells
    first = len(next(iter(columns.values()), ()))
    for key, cells in columns.items():
        if len(cells) != first:
            reason = f"ragged: this column has {len(cells)} cells, the first has {first}"
            raise ProblemError(Problem(file=str(path), field=key, reason=reason))
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _of_lists(path: Path, value: Sequence[object]) -> Content:
    rows: list[tuple[int, Sequence[object]]] = []
    header = value[0] if isinstance(value[0], list) else []
    for number, row in enumerate(value[1:], start=1):
        if not isinstance(row, list) or len(row) != len(header):
            reason = f"ragged: must be a list of {len(header)} cells, as the header is"
            raise ProblemError(Problem(file=str(path), row=number, reason=reason))
        rows.append((number, row))
    return "", header, rows, ""


def _of_records(path: Path, value: Iterable[object]) -> Content:
    header: list[str] = []
    rows: list[tuple[int, Sequence[object]]] = []
    for number, record in enumerate(value, start=1):
        if not isinstance(record, dict):
            raise ProblemError(Problem(file=str(path), row=number, reason="must be an object"))
        header = header or list(record)
        if odd := sorted(set(record) ^ set(header)):
            missing = odd[0] in header
            reason = "ragged: this cell is missing" if missing else "ragged: the first row does not have this column"
            raise ProblemError(Problem(file=str(path), row=number, field=odd[0], reason=reason))
        rows.append((number, [record[name] for name in header]))
    return "", header, rows, ""


def _jsonl_table(path: Path) -> Iterator[Content]:
    records: list[object] = []
    for item in read_rows(path):
        if isinstance(item, Problem):
            raise ProblemError(item)
        records.append(item[1])
    if not records:
        raise ProblemError(Problem(file=str(path), reason="it contains no rows"))
    yield _of_records(path, records)


_READERS: Mapping[str, Callable[[Path], Iterator[Content]]] = {
    ".csv": csv_table,
    ".tsv": csv_table,
    ".json": json_table,
    ".jsonl": _jsonl_table,
    ".parquet": parquet_table,
    ".xlsx": workbook_tables,
}
