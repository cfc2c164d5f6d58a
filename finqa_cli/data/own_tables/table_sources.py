"""Finds the tables of a source: files and databases in a folder, or one of them. Cells are not converted."""

from __future__ import annotations

import difflib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.own_tables.html_tables import html_tables
from finqa_cli.data.own_tables.table_budget import Budget, Content
from finqa_cli.data.own_tables.table_cells import DecimalMark
from finqa_cli.data.own_tables.table_region import find_regions
from finqa_cli.data.own_tables.text_tables import csv_tables, json_tables, jsonl_tables
from finqa_cli.data.own_tables.workbook_tables import duckdb_tables, parquet_table, workbook_tables
from finqa_cli.data.question_files.read_files import require_file

MAX_FILES = 20_000
DATABASES = (".sqlite", ".sqlite3", ".db", ".duckdb")
_SQLITE_MAGIC = b"SQLite format 3\0"
_DUCKDB_MAGIC = b"DUCK"
_LONGEST_VALUE = 2**24
"""Bytes of one value of a SQLite table; a longer one is refused before it is in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTable:
    """One table as it was found.

    Attributes:
        file: Path, with the name of the sheet or table if the file contains several.
        folder: First folder below the source; empty for a file directly in it, and for databases.
        stem: Name of the file without its ending.
        name: Name of the table, made from the path below that folder and the name of the sheet or table.
        inner: Name of the sheet or table inside its file; empty if the file has one table.
        header: Names of the columns.
        rows: Pairs of row number, as the user counts it, and [C] cells.
        title: Title above the header.
        unit: Unit that title or header name, as written.
        notes: Lines below the table.
        changes: Pairs of what the reader changed, and an example.
    """

    file: str
    folder: str
    stem: str
    name: str
    inner: str = ""
    header: Sequence[object]
    rows: Sequence[tuple[int, Sequence[object]]]
    title: str = ""
    unit: str = ""
    notes: tuple[str, ...] = ()
    changes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """How one table is read, where it differs from the others.

    Attributes:
        header_rows: Lines of its header; 0: as for all tables.
        skip: Lines above its title and header that are left out.
        encoding: Encoding of its file; empty: as for all tables.
        decimal: Its decimal mark; empty: as for all tables.
        unit: Its unit; empty: as title or header name it.
    """

    header_rows: int = 0
    skip: int = 0
    encoding: str = ""
    decimal: DecimalMark | Literal[""] = ""
    unit: str = ""


def find_rules(tables: Mapping[str, TableRules], company: str, name: str) -> TableRules:
    """Returns what is set for a table by `company/table`, else by its name alone; upper and lower case are the same."""
    named = {key.casefold(): rules for key, rules in tables.items()}
    return named.get(f"{company}/{name}".casefold()) or named.get(name.casefold()) or TableRules()


@dataclass(frozen=True, slots=True)
class Reading:
    """How the files of a source are read.

    Attributes:
        header_rows: Lines of each header; 0: as the cells show.
        encoding: Encoding of CSV and HTML files; empty: by their bytes.
        tables: What is set for single tables, by `folder/table` or name of the table.
    """

    header_rows: int = 0
    encoding: str = ""
    tables: Mapping[str, TableRules] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadTable:
    """A file or table that cannot be read.

    Attributes:
        problem: The reason.
        folder: First folder below the source, as in `RawTable`.
        stem: Name of the file without its ending, as in `RawTable`.
        name: Name that the table would have; of a file, the beginning of the names of its tables.
    """

    problem: Problem
    folder: str = ""
    stem: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is in a source.

    Attributes:
        tables: Readable tables, in order of their paths.
        unread: Files and tables that cannot be read.
        ignored: Files of other kinds.
    """

    tables: tuple[RawTable, ...]
    unread: tuple[UnreadTable, ...]
    ignored: tuple[str, ...]


def find_tables(source: Path, leave_out: Sequence[Path] = (), reading: Reading | None = None) -> Found:
    """Reads all tables of a folder, of a single file, or of a SQLite or DuckDB file.

    Args:
        source: Folder, file of a table, or database file.
        leave_out: Files of the folder that are not tables, such as the file of the questions.
        reading: How the files are read; None: as they show.

    Raises:
        ProblemError: The source is missing, is of another kind, or contains no table.
        MissingDependencyError: It contains Parquet, Excel or DuckDB files, and their reader is not installed.
    """
    reading = reading or Reading()
    unread: list[UnreadTable] = []
    ignored: list[str] = []
    if not source.exists():
        beside = [path.name for path in source.parent.iterdir()] if source.parent.is_dir() else []
        near = difflib.get_close_matches(source.name, beside, n=1)
        hint = f"; near it: {str(source.parent / near[0])!r}" if near else ""
        raise ProblemError(Problem(file=str(source), reason=f"there is no such file or folder{hint}"))
    if source.is_dir():
        found = list(_of_folder(source, {path.resolve() for path in leave_out}, unread, ignored, reading))
    elif is_table_file(source):
        found = list(_of_files([source], source.parent, unread, ignored, reading))
    else:
        found = list(_of_database(source, unread))
    if not found and not unread:
        others = f"; files of other types: {', '.join(ignored[:3])}" if ignored else ""
        raise ProblemError(Problem(file=str(source), reason=f"it contains no tables ({_kinds()}){others}"))
    return Found(tables=tuple(found), unread=tuple(unread), ignored=tuple(ignored))


def _kinds() -> str:
    return f"finqa reads {', '.join((*_READERS, *DATABASES))}, in a folder or one of them"


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
    folder: Path, leave_out: set[Path], unread: list[UnreadTable], ignored: list[str], reading: Reading
) -> Iterator[RawTable]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() or path.suffix.lower() in _READERS)
    if len(paths) > MAX_FILES:
        reason = f"contains {len(paths)} files, but at most {MAX_FILES} are supported"
        raise ProblemError(Problem(file=str(folder), reason=reason))
    shown = [path for path in paths if not any(part.startswith((".", "~$")) for part in path.relative_to(folder).parts)]
    tables = [path for path in shown if path.resolve() not in leave_out]
    yield from _of_files(tables, folder, unread, ignored, reading)


def _of_files(
    paths: Sequence[Path], folder: Path, unread: list[UnreadTable], ignored: list[str], reading: Reading
) -> Iterator[RawTable]:
    databases = {path.parent for path in paths if path.suffix.lower() in DATABASES and is_database(path)} - {folder}
    for path in paths:
        parts = path.relative_to(folder).parts
        if path.suffix.lower() in DATABASES and is_database(path):
            yield from _of_database(path, unread, parts)
            continue
        reader = _READERS.get(path.suffix.lower())
        if reader is None or databases.intersection(path.parent.parents):  # a folder beside a database describes it
            ignored.append(str(path))
            continue
        place = _Place(path, parts[0] if len(parts) > 1 else "", "_".join((*parts[1:-1], path.stem)))
        try:
            require_file(path)
            encoding = find_rules(reading.tables, place.folder, place.name).encoding or reading.encoding
            for content in reader(path, encoding):
                yield from _of_content(place, content, reading, unread)
        except ProblemError as error:
            unread.append(place.unread(error.problem))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a file is, and how its tables are called."""

    path: Path
    folder: str
    name: str

    def unread(self, problem: Problem, inner: str = "") -> UnreadTable:
        return UnreadTable(problem=problem, folder=self.folder, stem=self.path.stem, name=self.called(inner))

    def called(self, inner: str) -> str:
        return "_".join(filter(None, (self.name, inner)))

    def table(
        self, inner: str, header: Sequence[object], rows: Sequence[tuple[int, Sequence[object]]], **about: object
    ) -> RawTable:
        return RawTable(
            file=f"{self.path}, {inner}" if inner else str(self.path),
            folder=self.folder,
            stem=self.path.stem,
            name=self.called(inner),
            inner=inner,
            header=header,
            rows=rows,
            **about,  # type: ignore[arg-type]
        )


def _of_content(place: _Place, content: Content, reading: Reading, unread: list[UnreadTable]) -> Iterator[RawTable]:
    """Yields the tables of a content. A second table of a sheet or file has the number 2 in its name."""
    if content.grid is None:
        yield place.table(content.name, content.header, content.rows, changes=content.changes)
        return
    rules = find_rules(reading.tables, place.folder, place.called(content.name))
    header_rows = rules.header_rows or reading.header_rows
    grid = content.grid.part(rules.skip, len(content.grid.rows)) if rules.skip else content.grid
    for number, region in enumerate(find_regions(grid, header_rows), start=1):
        inner = content.name if number == 1 else f"{content.name}_{number}".strip("_")
        where = f"{place.path}, {inner}" if inner else str(place.path)
        if region.ragged is not None:
            row, count, width = region.ragged
            reason = f"ragged: {count} field{'s' * (count != 1)}, but the header has {width}"
            unread.append(place.unread(Problem(file=where, row=row, reason=reason), inner))
            continue
        if header_rows > region.header_rows:
            lines = region.header_rows + len(region.rows)
            reason = f"has {lines} rows, fewer than its header (--header-rows {header_rows})"
            unread.append(place.unread(Problem(file=where, reason=reason), inner))
            continue
        several = (("further tables in a sheet or file", inner),) if number > 1 else ()
        yield place.table(
            inner,
            region.header,
            region.rows,
            title=region.title,
            unit=rules.unit or region.unit,
            notes=region.notes,
            changes=(*content.changes, *several, *region.changes),
        )


def _of_database(path: Path, unread: list[UnreadTable], parts: Sequence[str] = ()) -> Iterator[RawTable]:
    """Yields the tables of a database. In a folder, the first of its `parts` is the company, as of other files.

    Raises:
        ProblemError: The file alone is the source, and it is damaged or no database.
    """
    require_file(path)
    with path.open("rb") as file:
        start = file.read(16)
    place = _Place(path, parts[0] if len(parts) > 1 else "", "_".join(parts[1:-1]))
    if start == _SQLITE_MAGIC:
        content = sqlite_tables(path, lambda problem, name: unread.append(place.unread(problem, name)))
    elif start[8:12] == _DUCKDB_MAGIC:
        content = duckdb_tables(path)
    else:
        reason = f"is not a SQLite or DuckDB file; {_kinds()}"
        raise ProblemError(Problem(file=str(path), reason=reason))
    try:
        for table in content:
            yield place.table(table.name, table.header, table.rows)
    except ProblemError as error:
        if not parts:
            raise
        unread.append(place.unread(error.problem))


def sqlite_tables(path: Path, report: Callable[[Problem, str], None]) -> Iterator[Content]:
    """Yields the tables of a SQLite file, which is opened for reading only; views and virtual tables are left out.

    Args:
        path: The file.
        report: Receives the problem and the name of a table that cannot be read.

    Raises:
        ProblemError: The file is damaged.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.text_factory = lambda data: data.decode(errors="surrogateescape")
            database.execute("PRAGMA trusted_schema=OFF")
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
            query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 ORDER BY name"
            names = [name for (name,) in database.execute(query) if not name.lower().startswith("sqlite_")]
            for name in names:
                budget = Budget(f"{path}, {name}")
                rows = []
                try:
                    cursor = database.execute(f'SELECT * FROM "{name.replace(chr(34), chr(34) * 2)}"')
                    header = tuple(column[0] for column in cursor.description)
                    for number, cells in enumerate(cursor, start=1):
                        budget.spend(cells)
                        rows.append((number, cells))
                except sqlite3.Error as error:
                    report(Problem(file=f"{path}, {name}", reason=f"cannot be read: {error}"), name)
                    continue
                except ProblemError as error:
                    report(error.problem, name)
                    continue
                yield Content(name=name, header=header, rows=rows)
    except sqlite3.Error as error:
        raise ProblemError(Problem(file=str(path), reason=f"is not a readable SQLite file: {error}")) from error


_READERS: Mapping[str, Callable[[Path, str], Iterator[Content]]] = {
    ".csv": csv_tables,
    ".tsv": csv_tables,
    ".json": lambda path, _: json_tables(path),
    ".jsonl": lambda path, _: jsonl_tables(path),
    ".parquet": lambda path, _: parquet_table(path),
    ".xlsx": lambda path, _: workbook_tables(path),
    ".xlsm": lambda path, _: workbook_tables(path),
    ".html": html_tables,
    ".htm": html_tables,
}
