"""Reads rows from a file, or from the files of a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import structlog

from finqa_cli.errors import DataError
from finqa_cli.types import DataInfo
from finqa_cli.types.splits import SPLITS, split_of_name
from finqa_plugins.environments.finqa_text.config import FinQATextConfig
from finqa_plugins.environments.finqa_text.text_rows import InputError, Row, read_row
from finqa_plugins.environments.finqa_text.text_splits import TextData, divide

MAX_BYTES = 2**30
_ENDINGS = (".json", ".jsonl")
_REMEDY = "--data takes a FinQA json file, a JSONL file of finqa data prepare, or a folder with train, dev and test"


def load(path: Path, config: FinQATextConfig) -> TextData:
    """The rows at a path.

    A folder holds a file for each split. A single file called test is `test`, and one called dev or val is `dev`; any
    other is training data, of which the share `holdout` of the companies becomes `dev`.

    Raises:
        DataError: The path or a row is missing or malformed (file, row, field, reason), or there is no row.
    """
    if path.is_dir():
        return _folder(path, config)
    reading = _Reading(skip_bad=config.skip_bad)
    rows = reading.rows(path)
    reading.finish()
    named = split_of_name(path)
    split = (named or "train") if config.split == "auto" else config.split
    by_split = divide(rows, {"dev": config.holdout}, config.seed) if split == "train" else {split: rows}
    evaluation_only = named == "test" or any(row.evaluation_only for row in rows)
    info = DataInfo(name=path.name, digest=f"sha256:{reading.digests[path]}", evaluation_only=evaluation_only)
    return TextData(info=info, rows=by_split)


def _folder(path: Path, config: FinQATextConfig) -> TextData:
    if config.split != "auto":
        raise DataError(f"Option split={config.split} is for a single file, but {path} is a folder.", remedy=_REMEDY)
    chosen = {split: file for split in SPLITS if (file := _file_of(path, split)) is not None}
    if not chosen:
        raise DataError(f"{path} holds no train, dev or test file (.json, .jsonl).", remedy=_REMEDY)
    reading = _Reading(skip_bad=config.skip_bad)
    rows = {split: reading.rows(file) for split, file in chosen.items()}
    reading.finish()
    lines = "".join(f"{reading.digests[file]}  {split}\n" for split, file in chosen.items())
    digest = hashlib.sha256(lines.encode()).hexdigest()
    training = [row for split, part in rows.items() if split != "test" for row in part]
    evaluation_only = not training or any(row.evaluation_only for row in training)
    info = DataInfo(name=path.resolve().name, digest=f"sha256:{digest}", evaluation_only=evaluation_only)
    return TextData(info=info, rows={split: part for split, part in rows.items() if part})


def _file_of(folder: Path, split: str) -> Path | None:
    """The file of a split: the one of just that name (dev.json) before others that speak of it (finqa_dev.json)."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix in _ENDINGS and split_of_name(file) == split)
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror or error}.", remedy=_REMEDY) from error
    exact = [file for file in files if file.stem.isalpha()]
    found = exact or files
    if len(found) > 1:
        names = " and ".join(file.name for file in found)
        raise DataError(f"{folder} holds several files of split {split!r}: {names}.", remedy="leave one of them there")
    return found[0] if found else None


class _Reading:
    """Reads one file after another and remembers what was wrong; ids are unique over all of them."""

    def __init__(self, *, skip_bad: bool) -> None:
        self.digests: dict[Path, str] = {}
        self._skip_bad = skip_bad
        self._ids: set[str] = set()
        self._problems: list[str] = []

    def rows(self, path: Path) -> tuple[Row, ...]:
        """The good rows of a file.

        Raises:
            DataError: The file as a whole cannot be read.
        """
        try:
            content = _content(path)
            values = list(_values(content))
        except InputError as error:
            raise DataError(f"{path}: {error}.", remedy=_REMEDY) from error
        self.digests[path] = hashlib.sha256(content).hexdigest()
        rows = []
        for number, value in values:
            try:
                rows.append(self._row(value))
            except InputError as error:
                self._problems.append(f"{path}, row {number}, {error}")
        return tuple(rows)

    def _row(self, value: object) -> Row:
        row = read_row(_parsed(value) if isinstance(value, bytes) else value)
        if row.id in self._ids:
            raise InputError(f"field 'id': {row.id!r} comes twice")
        self._ids.add(row.id)
        return row

    def finish(self) -> None:
        """Fails or warns about what was wrong.

        Raises:
            DataError: A row is malformed and bad rows are not to be skipped, or no row is left.
        """
        if self._problems and not self._skip_bad:
            more = f" ({len(self._problems) - 1} more problems)" if len(self._problems) > 1 else ""
            remedy = "--set environment.options.skip_bad=true leaves such rows out"
            raise DataError(f"{self._problems[0]}{more}.", remedy=remedy)
        if not self._ids:
            first = f": {self._problems[0]}" if self._problems else ""
            raise DataError(f"{', '.join(map(str, self.digests))}: there is no good row{first}.", remedy=_REMEDY)
        if self._problems:
            log = structlog.get_logger(__name__)
            log.warning("bad rows left out", count=len(self._problems), first=self._problems[0])


def _content(path: Path) -> bytes:
    try:
        if not path.exists():
            raise InputError("there is no such file")
        if not path.is_file():  # a pipe would be waited for, without end
            raise InputError("is neither a file nor a folder")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise InputError(f"holds {size} bytes, at most {MAX_BYTES} are taken")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _values(content: bytes) -> Iterator[tuple[int, object]]:
    """Rows with their numbers: places in a JSON list from 1, or unparsed lines of a JSONL file."""
    text = content.removeprefix(b"\xef\xbb\xbf")
    if text.lstrip()[:1] == b"[":
        rows = _parsed(text)
        assert isinstance(rows, list), "a JSON text that begins with a bracket is a list"
        yield from enumerate(rows, start=1)
        return
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _parsed(content: bytes) -> object:
    try:
        value: object = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"is not valid UTF-8 (line {line})") from error
    except json.JSONDecodeError as error:
        raise InputError(f"is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # an integer of more digits than Python converts; deep nesting
        raise InputError(f"is not readable JSON: {error}") from error
    return value
