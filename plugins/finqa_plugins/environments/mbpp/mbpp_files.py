"""Reads problems from a JSON, JSONL or parquet file, or from the files of a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError, MissingDependencyError
from finqa_cli.types import DataInfo
from finqa_cli.types.splits import split_of_name
from finqa_plugins.environments.mbpp.mbpp_problems import InputError, Problem, read_problem, split_of_id

SPLITS = ("train", "dev", "test", "prompt")
MAX_BYTES = 2**28
_ENDINGS = (".jsonl", ".json", ".parquet")
_REMEDY = "--data takes mbpp.jsonl, or a folder such as `finqa data fetch mbpp` makes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """Problems by split, in the order of `SPLITS`, each split by number; no split is empty."""

    info: DataInfo
    by_split: dict[str, tuple[Problem, ...]]


def embedded() -> Problems:
    """The problems that ship with the package."""
    content = resources.files("finqa_plugins.environments.mbpp").joinpath("embedded.jsonl").read_bytes()
    return _collected("embedded", [(Path("embedded.jsonl"), content)])


def load(path: Path) -> Problems:
    """The problems at a path. A file called train, dev, validation or test is that split; elsewhere `task_id` tells it.

    Of a folder the files in its folder `full` are read, where there is one, else its own.

    Raises:
        DataError: A file or row is missing or malformed (file, row, field, reason), or two problems have one number.
        MissingDependencyError: A parquet file needs pyarrow, which is not installed.
    """
    if not path.is_dir():
        return _collected(path.name, [(path, _content(path))])
    folder = path / "full" if (path / "full").is_dir() else path
    files = sorted(file for file in folder.iterdir() if file.suffix in _ENDINGS and file.name != "fetch.json")
    if not files:
        raise DataError(f"{folder} holds no file of problems ({', '.join(_ENDINGS)}).", remedy=_REMEDY)
    return _collected(path.resolve().name, [(file, _content(file)) for file in files])


def _collected(name: str, files: list[tuple[Path, bytes]]) -> Problems:
    found: dict[str, list[Problem]] = {split: [] for split in SPLITS}
    ids: set[str] = set()
    for path, content in files:
        named = split_of_name(path)
        for row, value in _rows(path, content):
            try:
                problem = read_problem(value)
                if problem.id in ids:
                    raise InputError(f"field 'task_id': {problem.id} comes twice")
            except InputError as error:
                raise DataError(f"{path}, row {row}, {error}.", remedy=_REMEDY) from error
            ids.add(problem.id)
            found[named or split_of_id(int(problem.id))].append(problem)
    if not ids:
        raise DataError(f"{name} holds no problems.", remedy=_REMEDY)
    digest = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for _, content in files)).hexdigest()
    by_split = {
        split: tuple(sorted(problems, key=lambda problem: int(problem.id)))
        for split, problems in found.items()
        if problems
    }
    return Problems(info=DataInfo(name=name, digest=f"sha256:{digest}"), by_split=by_split)


def _content(path: Path) -> bytes:
    try:
        if not path.exists():
            raise DataError(f"{path}: there is no such file.", remedy=_REMEDY)
        if not path.is_file():  # a pipe would be waited for, without end
            raise DataError(f"{path} is neither a file nor a folder.", remedy=_REMEDY)
        if (size := path.stat().st_size) > MAX_BYTES:
            raise DataError(f"{path} holds {size} bytes, at most {MAX_BYTES} are taken.", remedy=_REMEDY)
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.", remedy=_REMEDY) from error


def _rows(path: Path, content: bytes) -> Iterator[tuple[int, Any]]:
    """Rows with their numbers, from 1."""
    if path.suffix == ".parquet":
        yield from enumerate(_parquet_rows(path), start=1)
        return
    text = content.removeprefix(b"\xef\xbb\xbf")
    if text.lstrip()[:1] == b"[":
        yield from enumerate(_parsed(path, text), start=1)
        return
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip():
            yield number, _parsed(path, line, number)


def _parquet_rows(path: Path) -> list[Any]:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingDependencyError(f"Reading {path} needs pyarrow.", remedy="pip install pyarrow") from error
    try:
        rows: list[Any] = parquet.read_table(path).to_pylist()
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} is no readable parquet file: {error}", remedy=_REMEDY) from error
    return rows


def _parsed(path: Path, content: bytes, line: int = 0) -> Any:
    place = f"{path}, line {line}," if line else f"{path}"
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:  # ValueError: also an integer of more digits than Python converts
        raise DataError(f"{place} is not valid JSON: {error}.", remedy=_REMEDY) from error
