"""Rows of question files in JSON, JSONL, CSV and Parquet, one by one; a bad row does not affect the others."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.openenv_layout.layout import QUESTIONS_FILE
from finqa_cli.data.question_files.field_values import first_fault, repeated
from finqa_cli.data.question_files.read_files import parquet_rows, read_bytes, read_json, require_file
from finqa_cli.documents import parse_json
from finqa_cli.types.splits import split_of_name

Row = tuple[int, dict[str, object]]
"""Number and fields by name. The number is the line of a CSV or JSONL file, else the place in the list, from 1."""

_MAX_LINE_BYTES = 64 * 2**20
_FIELD_LIMIT = 2**30


def read_rows(path: Path) -> Iterator[Row | Problem]:
    """Yields the rows of a `.json` (a list of objects), `.jsonl`, `.csv` (with header) or `.parquet` file.

    A row that is not an object, is ragged, or contains an unsupported value (see `field_values`) is yielded as its
    problem.

    Raises:
        ProblemError: The file as a whole is missing, unreadable, of another kind, or damaged from some row on.
        MissingDependencyError: It is a Parquet file, and pyarrow is not installed.
    """
    suffix = path.suffix.lower()
    reader = _READERS.get(suffix)
    if reader is None:
        require_file(path)
        what = f"the ending {suffix!r} is" if suffix else "a file without an extension is"
        reason = f"{what} not supported; finqa reads {', '.join(_READERS)}"
        raise ProblemError(Problem(file=str(path), reason=reason))
    for item in reader(path):
        yield item if isinstance(item, Problem) else _checked(path, *item)


def split_files(folder: Path) -> tuple[Path, ...]:
    """Returns the non-empty files that are named by a split, in a folder of `finqa data prepare` or of original FinQA.

    Returns () for a data folder, which has questions and tables in separate folders.
    """
    try:
        if (folder / QUESTIONS_FILE).parent.exists():
            return ()
        named = [path for path in folder.iterdir() if path.suffix.lower() in _READERS and split_of_name(path)]
        return tuple(sorted(path for path in named if path.is_file() and path.stat().st_size))
    except OSError:  # the caller reads the folder next and reports the error
        return ()


def finqa_files(paths: Sequence[Path]) -> list[Path]:
    """Returns question files; of a folder, such as a checkout of FinQA, those of its splits, also in `dataset` below.

    Private test files, which have no answers, are left out. A folder without such files is returned as it is.
    """
    found: list[Path] = []
    for path in paths:
        inside = (split_files(path) or split_files(path / "dataset")) if path.is_dir() else ()
        found += [file for file in inside if "private" not in file.stem.split("_")] or [path]
    return found


def csv_rows(
    path: Path, required: Sequence[str] = (), separator: str = ","
) -> Iterator[tuple[int, dict[str, str]] | Problem]:
    """Yields the rows of a CSV file with a header; all fields are texts. A row with invalid UTF-8 is a problem.

    Raises:
        ProblemError: The file is missing or unreadable, the header lacks a required column or names one twice, or the
            quoting is invalid from some row on.
    """
    for item in _csv_rows(path, required, separator):
        if isinstance(item, Problem):
            yield item
            continue
        line, fields = item
        fault = first_fault(fields)
        yield Problem(file=str(path), row=line, field=fault[0], reason=fault[1]) if fault else (line, fields)


def _checked(path: Path, number: int, fields: object) -> Row | Problem:
    if not isinstance(fields, dict):
        return Problem(file=str(path), row=number, reason="must be an object")
    fault = first_fault(fields)
    return Problem(file=str(path), row=number, field=fault[0], reason=fault[1]) if fault else (number, fields)


def _json_rows(path: Path) -> Iterator[tuple[int, object] | Problem]:
    rows = read_json(path)
    if not isinstance(rows, list):
        raise ProblemError(Problem(file=str(path), reason="must be a list of rows"))
    yield from enumerate(rows, start=1)


def _jsonl_rows(path: Path) -> Iterator[tuple[int, object] | Problem]:
    require_file(path)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES + 1), b""), start=1):
                if len(line) > _MAX_LINE_BYTES:
                    reason = f"the line is longer than {_MAX_LINE_BYTES} bytes"
                    raise ProblemError(Problem(file=str(path), row=number, reason=reason))
                if line.strip(b"\xef\xbb\xbf \t\r\n"):
                    yield _json_line(path, number, line)
    except OSError as error:
        raise ProblemError(Problem(file=str(path), reason=f"cannot be read: {error.strerror or error}")) from error


def _json_line(path: Path, number: int, line: bytes) -> tuple[int, object] | Problem:
    try:
        return number, parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return Problem(file=str(path), row=number, reason="is not valid UTF-8")
    except ValueError as error:
        return Problem(file=str(path), row=number, reason=str(error))


def _csv_rows(
    path: Path, required: Sequence[str] = (), separator: str = ","
) -> Iterator[tuple[int, dict[str, str]] | Problem]:
    lines = csv_cells(path, separator)
    header = [name.strip() for name in next(lines, (1, []))[1]]
    _check_header(path, header, required)
    for line, cells in lines:
        if len(cells) != len(header):
            reason = f"ragged: {len(cells)} fields, but the header has {len(header)}"
            yield Problem(file=str(path), row=line, reason=reason)
        else:
            yield line, dict(zip(header, cells, strict=True))


def csv_cells(path: Path, separator: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yields the header and then each row of a CSV file that is not a blank line, with its line number from 1.

    Bytes that are not UTF-8 become lone surrogates, so that only the cells that contain them are invalid.

    Raises:
        ProblemError: The file is missing or unreadable, or the quoting is invalid from some row on.
    """
    text = read_bytes(path).decode("utf-8-sig", errors="surrogateescape")
    csv.field_size_limit(_FIELD_LIMIT)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    line = 1
    try:
        for cells in reader:
            if cells or line == 1:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise ProblemError(Problem(file=str(path), row=reader.line_num, reason=f"is not valid CSV: {error}")) from error


def _check_header(path: Path, header: Sequence[str], required: Sequence[str]) -> None:
    if not header:
        raise ProblemError(Problem(file=str(path), reason="is empty"))
    if fault := first_fault({f"column {place}": name for place, name in enumerate(header, start=1)}):
        raise ProblemError(Problem(file=str(path), row=1, field=fault[0], reason=fault[1]))
    if twice := repeated(header):
        reason = "the column name occurs twice (ignoring case)"
        raise ProblemError(Problem(file=str(path), row=1, field=twice, reason=reason))
    if missing := [column for column in required if column not in header]:
        reason = f"the header lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise ProblemError(Problem(file=str(path), row=1, field=missing[0], reason=reason))


def _parquet_rows(path: Path) -> Iterator[tuple[int, object] | Problem]:
    require_file(path)
    yield from enumerate(parquet_rows(path), start=1)


_READERS: Mapping[str, Callable[[Path], Iterable[tuple[int, object] | Problem]]] = {
    ".json": _json_rows,
    ".jsonl": _jsonl_rows,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
}
