"""Reads rows from a Parquet or JSONL file, or from the files of a folder."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import structlog

from finqa_cli.errors import DataError, MissingDependencyError
from finqa_cli.types import DataInfo
from finqa_cli.types.splits import SPLITS, split_of_name
from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.date_splits import ForecastData, divide
from finqa_plugins.environments.forecast.forecast_rows import InputError, Row, read_row

MAX_BYTES = 2**31
_ENDINGS = (".parquet", ".jsonl")
_REMEDY = "--data takes a .parquet or .jsonl file in verl's schema, or a folder with a train and a test file"


def load(path: Path, config: ForecastConfig) -> ForecastData:
    """The rows at a path.

    A folder holds one file for each split (train..., dev or val..., test...). A single file called test is `test`, one
    called dev or val is `dev`; any other is training data. Where there is training data and nothing to look at while
    training, the share `holdout` of its clusters becomes `dev`.

    Raises:
        DataError: The path or a row is missing or malformed (file, row, field, reason), or there is no row.
        MissingDependencyError: A Parquet file is there and pyarrow is not.
    """
    if config.match and not path.is_dir():
        raise DataError(f"Option match={config.match} is for a folder, but {path} is none.", remedy=_REMEDY)
    files = _folder(path, config) if path.is_dir() else {split_of_name(path) or "train": path}
    reading = _Reading(config)
    rows = {split: reading.rows(file) for split, file in files.items()}
    reading.finish()
    lines = "".join(f"{reading.digests[file]}  {split}\n" for split, file in files.items())
    digest = hashlib.sha256(lines.encode()).hexdigest()
    info = DataInfo(
        name=path.resolve().name, digest=f"sha256:{digest}", evaluation_only="train" not in rows and "test" in rows
    )
    if "train" in rows and rows.keys() & {"dev", "test"} == set():
        return ForecastData(info=info, rows=divide(rows["train"], {"dev": config.holdout}, config))
    return ForecastData(info=info, rows={split: part for split, part in rows.items() if part})


def _folder(path: Path, config: ForecastConfig) -> dict[str, Path]:
    try:
        found = [file for file in path.iterdir() if file.suffix in _ENDINGS and config.match in file.name]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.", remedy=_REMEDY) from error
    chosen: dict[str, Path] = {}
    for file in sorted(found):
        split = split_of_name(file)
        if split in chosen:
            raise DataError(
                f"{path} holds several files of split {split!r}: {chosen[split].name} and {file.name}.",
                remedy="--set environment.options.match=TEXT takes those with the text in their names",
            )
        if split:
            chosen[split] = file
    if not chosen:
        named = f" with {config.match!r} in its name" if config.match else ""
        raise DataError(f"{path} holds no train, dev or test file{named} (.parquet, .jsonl).", remedy=_REMEDY)
    return {split: chosen[split] for split in SPLITS if split in chosen}


class _Reading:
    """Reads one file after another and remembers what was wrong."""

    def __init__(self, config: ForecastConfig) -> None:
        self.digests: dict[Path, str] = {}
        self._config = config
        self._found = 0
        self._problems: list[str] = []

    def rows(self, path: Path) -> tuple[Row, ...]:
        """The good rows of a file that are of the types asked for.

        Raises:
            DataError: The file as a whole cannot be read.
        """
        rows = []
        try:
            self.digests[path] = _digest(path)
            for number, value in _values(path):
                try:
                    row = read_row(_parsed(value) if isinstance(value, bytes) else value, name=f"{path.stem}-{number}")
                except InputError as error:
                    self._problems.append(f"{path}, row {number}, {error}")
                    continue
                if not self._config.types or row.question_type in self._config.types:
                    rows.append(row)
        except InputError as error:
            raise DataError(f"{path}: {error}.", remedy=_REMEDY) from error
        self._found += len(rows)
        return tuple(rows)

    def finish(self) -> None:
        """Fails or warns about what was wrong.

        Raises:
            DataError: A row is malformed and bad rows are not to be skipped, or no row is left.
        """
        if self._problems and not self._config.skip_bad:
            more = f" ({len(self._problems) - 1} more problems)" if len(self._problems) > 1 else ""
            remedy = "--set environment.options.skip_bad=true leaves such rows out"
            raise DataError(f"{self._problems[0]}{more}.", remedy=remedy)
        if not self._found:
            first = f": {self._problems[0]}" if self._problems else ""
            raise DataError(f"{', '.join(map(str, self.digests))}: there is no good row{first}.", remedy=_REMEDY)
        if self._problems:
            log = structlog.get_logger(__name__)
            log.warning("bad rows left out", count=len(self._problems), first=self._problems[0])


def _digest(path: Path) -> str:
    try:
        if not path.exists():
            raise InputError("there is no such file")
        if not path.is_file():  # a pipe would be waited for, without end
            raise InputError("is neither a file nor a folder")
        if path.suffix not in _ENDINGS:
            raise InputError("is neither .parquet nor .jsonl")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise InputError(f"holds {size} bytes, at most {MAX_BYTES} are taken")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _values(path: Path) -> Iterator[tuple[int, object]]:
    """Rows with their numbers from 1: of Parquet as objects, of JSONL as unparsed lines."""
    if path.suffix == ".parquet":
        yield from enumerate(_parquet_rows(path), start=1)
        return
    for number, line in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _parquet_rows(path: Path) -> Iterator[object]:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        reason = f"Reading {path} needs pyarrow, which is not installed."
        raise MissingDependencyError(reason, remedy="pip install 'finqa[data]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from (_plain(row) for row in batch.to_pylist())
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"is not readable Parquet: {' '.join(str(error).split()).rstrip('.')}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def _parsed(line: bytes) -> object:
    try:
        value: object = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError("is not valid UTF-8") from error
    except (ValueError, RecursionError) as error:  # also an integer of more digits than Python converts
        raise InputError(f"is not valid JSON: {' '.join(str(error).split()).rstrip('.')}") from error
    return value
