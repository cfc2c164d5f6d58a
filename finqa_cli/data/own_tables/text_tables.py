"""Tables of CSV and JSON files: encodings, separators, and every form in which pandas writes JSON."""

from __future__ import annotations

import codecs
import csv
import datetime
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.own_tables.table_budget import Budget, Content
from finqa_cli.data.own_tables.table_region import FIRST_COLUMN, Grid
from finqa_cli.data.question_files.question_rows import read_rows
from finqa_cli.data.question_files.read_files import read_bytes
from finqa_cli.documents import parse_json

_SEPARATORS = ",;\t|"
_SAMPLE_LINES = 60
_FIELD_LIMIT = 2**30
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_PERIOD = re.compile(r"[^0-9]{0,12}(?:19|20)[0-9]{2}(?![0-9]).{0,20}|[0-9]{12,13}|q[1-4]\b.{0,8}", re.IGNORECASE)
"""A name of a column of a statement: a year, quarter or date, also as pandas writes dates, in milliseconds."""
_MILLISECONDS = re.compile(r"-?[0-9]{8,13}", re.ASCII)


def decode(path: Path, data: bytes, encoding: str = "") -> tuple[str, str]:
    """Returns the text of a file and the encoding it was read in.

    A byte order mark decides; else it is UTF-16 if every second byte is 0, UTF-8, or Windows' cp1252, in which Excel
    writes CSV files. A file that is UTF-8 except for some bytes is damaged, not cp1252.

    Raises:
        ProblemError: It is in none of these encodings, or not in the given one.
    """
    if encoding:
        try:
            return data.decode(encoding), encoding
        except (UnicodeDecodeError, LookupError) as error:
            raise ProblemError(Problem(file=str(path), reason=f"is not in the encoding {encoding}: {error}")) from error
    name = next((name for mark, name in _BOMS if data.startswith(mark)), "")
    if not name and data[1:64:2].count(0) == len(data[1:64:2]) > 1:
        name = "utf-16-le"
    try:
        return data.decode(name or "utf-8"), name or "utf-8"
    except UnicodeDecodeError as error:
        row = error.object.count(b"\n", 0, error.start) + 1
        wrong = data.decode("utf-8", "surrogateescape")
        mixed = any(letter > "\x7f" and not "\udc80" <= letter <= "\udcff" for letter in wrong)
        try:
            if not name and not mixed:
                return data.decode("cp1252"), "cp1252"
        except UnicodeDecodeError:
            pass
        reason = "is not valid UTF-8; if it is another encoding: --encoding NAME, such as --encoding latin-1"
        raise ProblemError(Problem(file=str(path), row=row, reason=reason)) from error


def csv_tables(path: Path, encoding: str = "") -> Iterator[Content]:
    """Yields the cells of a CSV file; see `separator_of` for its separator.

    Raises:
        ProblemError: The file is unreadable, empty, or too large, or its quoting is invalid from some row on.
    """
    text, name = decode(path, read_bytes(path), encoding)
    separator = separator_of(text)
    if text.startswith("sep=") and "\n" in text:
        text = "\n" + text.partition("\n")[2]
    budget = Budget(str(path))
    grid = Grid([], [])
    for line, cells in _lines(path, text, separator):
        budget.spend(cells)
        grid.numbers.append(line)
        grid.rows.append(list(cells))
        grid.fields.append(len(cells))
    if not any(cell.strip() for cells in grid.rows for cell in cells if isinstance(cell, str)):
        raise ProblemError(Problem(file=str(path), reason="is empty"))
    width = max(map(len, grid.rows))
    grid.rows = [[*cells, *[None] * (width - len(cells))] for cells in grid.rows]
    known = ("utf-8", "utf-8-sig", encoding)
    yield Content(name="", grid=grid, changes=() if name in known else ((f"files read as {name}", path.name),))


def _lines(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields each row with its line number; an empty line is a row without cells."""
    csv.field_size_limit(_FIELD_LIMIT)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    line = 1
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise ProblemError(Problem(file=str(path), row=reader.line_num, reason=f"is not valid CSV: {error}")) from error


def separator_of(text: str) -> str:
    """Returns the separator of a CSV file: the one of comma, semicolon, tab and `|` that divides most lines alike.

    `sep=;` in the first line, which Excel writes, decides.
    """
    lines = text.splitlines()[:_SAMPLE_LINES] if len(text) < 2**20 else text[: 2**20].splitlines()[:_SAMPLE_LINES]
    if lines and re.fullmatch(r"sep=[,;\t|]", lines[0]):
        return lines[0][4]
    filled = "\n".join(line for line in lines if line.strip())

    def alike(separator: str) -> tuple[int, int]:
        try:
            sizes = [len(cells) for cells in csv.reader(io.StringIO(filled, newline=""), delimiter=separator)]
        except csv.Error:
            return 0, 0
        several = [size for size in sizes if size > 1]
        most = max(set(several), key=lambda size: (several.count(size), size), default=0)
        return several.count(most), most

    return max(_SEPARATORS, key=lambda separator: (alike(separator), -_SEPARATORS.index(separator)))


def json_tables(path: Path) -> Iterator[Content]:
    """Yields the one table of a JSON file, in one of the forms that pandas writes.

    These are a list of row objects (`records`), an object of columns or of rows (`columns`, `index`), an object with
    `columns`, `data` and perhaps `index` (`split`), one with `schema` and `data` (`table`), and a list of lists.

    Raises:
        ProblemError: The file is unreadable, has another form, is ragged, or repeats a key in an object.
    """
    try:
        value = parse_json(decode(path, read_bytes(path))[0].removeprefix("\ufeff"), unique=True)
    except ValueError as error:
        raise ProblemError(Problem(file=str(path), reason=str(error))) from error
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        if isinstance(value.get("columns"), list):
            yield _of_split(path, value["columns"], value["data"], value.get("index"))
            return
        if isinstance(value.get("schema"), dict):
            yield _of_schema(path, value["schema"], value["data"])
            return
    if isinstance(value, dict) and value:
        yield _of_objects(path, value)
        return
    if not isinstance(value, list) or not value:
        reason = "must be a list of row objects, an object of columns, or a list of lists"
        raise ProblemError(Problem(file=str(path), reason="it contains no rows" if value in ([], {}) else reason))
    yield _of_lists(path, value) if isinstance(value[0], list) else of_records(str(path), value)


def jsonl_tables(path: Path) -> Iterator[Content]:
    """Yields the one table of a JSONL file, whose rows are objects.

    Raises:
        ProblemError: A row is malformed, or there is none.
    """
    records: list[object] = []
    for item in read_rows(path):
        if isinstance(item, Problem):
            raise ProblemError(item)
        records.append(item[1])
    if not records:
        raise ProblemError(Problem(file=str(path), reason="it contains no rows"))
    yield of_records(str(path), records)


def _of_split(path: Path, columns: Sequence[object], data: Sequence[object], index: object) -> Content:
    names = [_label(name) for name in columns]
    labels = index if isinstance(index, list) and not _counts_rows(index) else None
    if labels is not None and len(labels) != len(data):
        reason = f"ragged: the index has {len(labels)} entries, and there are {len(data)} rows"
        raise ProblemError(Problem(file=str(path), field="index", reason=reason))
    levels = max((len(label) if isinstance(label, list) else 1 for label in labels), default=1) if labels else 0
    rows: list[list[object]] = []
    for number, row in enumerate(data, start=1):
        if not isinstance(row, list) or len(row) != len(names):
            reason = f"ragged: must be a list of {len(names)} cells, as the header is"
            raise ProblemError(Problem(file=str(path), row=number, reason=reason))
        label = labels[number - 1] if labels else []
        before = label if isinstance(label, list) else [label]
        rows.append([*before, *[None] * (levels - len(before)), *row])
    first = [FIRST_COLUMN, *(f"level_{place}" for place in range(1, levels))][:levels]
    return _typed(str(path), [*first, *names], rows)


def _of_schema(path: Path, schema: Mapping[str, object], data: Sequence[object]) -> Content:
    fields = schema.get("fields")
    names = [field.get("name") for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []
    content = of_records(str(path), data)
    keys = [name for name in names if name in content.header]
    key = schema.get("primaryKey")
    if key == ["index"] and "index" in content.header:
        place = content.header.index("index")
        if _counts_rows([cells[place] for _, cells in content.rows]):
            return _typed(
                str(path),
                [name for name in content.header if name != "index"],
                [[*cells[:place], *cells[place + 1 :]] for _, cells in content.rows],
            )
    order = [content.header.index(name) for name in keys] if len(keys) == len(content.header) else None
    if order is None:
        return content
    header = [FIRST_COLUMN if name == "index" and key == ["index"] else str(name) for name in keys]
    return _typed(str(path), header, [[cells[place] for place in order] for _, cells in content.rows])


def _of_objects(path: Path, value: Mapping[str, object]) -> Content:
    """Returns the table of an object of columns or rows, each a list of cells or an object of cells by label.

    Objects of columns and of rows look alike. What the names of one side say decides: rows are numbered from 0, and
    columns are periods; otherwise they are columns, as `DataFrame.to_json` writes by default.
    """
    for key, cells in value.items():
        if not isinstance(cells, dict | list):
            reason = "must be a list of row objects or an object of columns, but this key contains neither"
            raise ProblemError(Problem(file=str(path), field=key, reason=reason))
    if not all(isinstance(cells, dict) for cells in value.values()):
        lists = {key: list(cells.values()) if isinstance(cells, dict) else cells for key, cells in value.items()}
        return _of_columns(path, lists)  # type: ignore[arg-type]
    objects: dict[str, dict[str, object]] = value  # type: ignore[assignment]
    inner = list(dict.fromkeys(name for cells in objects.values() for name in cells))
    outer = list(objects)
    by_rows = (_are_periods(inner) and not _are_periods(outer)) or (_counts_rows(outer) and not _counts_rows(inner))
    rows, columns = (outer, inner) if by_rows else (inner, outer)
    cells = [[objects[row].get(column) if by_rows else objects[column].get(row) for column in columns] for row in rows]
    if _counts_rows(rows):
        return _typed(str(path), _dates(columns), cells)
    kept = [[row, *each] for row, each in zip(_dates(rows), cells, strict=True)]
    return _typed(str(path), [FIRST_COLUMN, *_dates(columns)], kept)


def _of_columns(path: Path, columns: Mapping[str, list[object]]) -> Content:
    size = len(next(iter(columns.values()), []))
    for key, cells in columns.items():
        if len(cells) != size:
            reason = f"ragged: this column has {len(cells)} cells, the first has {size}"
            raise ProblemError(Problem(file=str(path), field=key, reason=reason))
    return _typed(str(path), list(columns), [list(cells) for cells in zip(*columns.values(), strict=True)])


def _of_lists(path: Path, value: Sequence[object]) -> Content:
    first = value[0] if isinstance(value[0], list) else []
    budget = Budget(str(path))
    rows: list[list[object]] = []
    for number, row in enumerate(value):
        if not isinstance(row, list) or len(row) != len(first):
            reason = f"ragged: must be a list of {len(first)} cells, as the header is"
            raise ProblemError(Problem(file=str(path), row=number, reason=reason))
        budget.spend(row)
        rows.append(list(row))
    return Content(name="", grid=Grid(list(range(len(rows))), rows))


def of_records(file: str, value: Iterable[object]) -> Content:
    """Returns the table of row objects, which have the same keys.

    Raises:
        ProblemError: A row is no object or has other keys than the first, or the table is too large.
    """
    header: list[str] = []
    rows: list[list[object]] = []
    for number, record in enumerate(value, start=1):
        if not isinstance(record, dict):
            raise ProblemError(Problem(file=file, row=number, reason="must be an object"))
        header = header or list(record)
        if odd := sorted(set(record) ^ set(header)):
            missing = odd[0] in header
            reason = "ragged: this cell is missing" if missing else "ragged: the first row does not have this column"
            raise ProblemError(Problem(file=file, row=number, field=odd[0], reason=reason))
        rows.append([record[name] for name in header])
    return _typed(file, header, rows)


def _typed(file: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Content:
    budget = Budget(file)
    for row in rows:
        budget.spend(row)
    return Content(name="", header=tuple(header), rows=list(enumerate(rows, start=1)))


def _label(name: object) -> str:
    return " ".join(map(str, name)) if isinstance(name, list) else "" if name is None else str(name)


def _dates(names: Sequence[str]) -> list[str]:
    """Returns names with dates in place of milliseconds since 1970, as which pandas writes the dates of an index."""
    if not names or not all(_MILLISECONDS.fullmatch(name) for name in names):
        return list(names)
    days = [datetime.timedelta(milliseconds=int(name)) for name in names]
    if any(day % datetime.timedelta(days=1) for day in days):
        return list(names)
    return [(datetime.date(1970, 1, 1) + day).isoformat() for day in days]


def _counts_rows(labels: Sequence[object]) -> bool:
    """Returns whether labels are 0, 1, 2, ..., as a data frame without labels has."""
    return [str(label) for label in labels] == [str(number) for number in range(len(labels))]


def _are_periods(names: Sequence[str]) -> bool:
    return bool(names) and all(_PERIOD.fullmatch(name) for name in names)
