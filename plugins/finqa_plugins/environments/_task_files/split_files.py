"""Reads a file of rows, or a folder with a file for each split, into splits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from finqa_cli.errors import DataError
from finqa_cli.types import DataInfo
from finqa_cli.types.splits import split_of_name
from finqa_plugins.environments._task_files.task_rows import Row, RowReader, TaskData, files_by_split, group_by_split

Split = Literal["auto", "train", "dev", "test"]
_ENDINGS = (".json", ".jsonl")


def load_by_split(
    path: Path,
    reader: RowReader[Row],
    *,
    split: Split,
    divide: Callable[[Sequence[Row]], Mapping[str, tuple[Row, ...]]],
    is_held_out: Callable[[Row], bool] = lambda row: False,
) -> TaskData[Row]:
    """Read the rows at a path.

    A folder contains a file for each split. A single file called test is `test`, and one called dev or val is `dev`;
    any other is training data.

    Args:
        path: File or folder.
        reader: Reads each file.
        split: The split of a single file, or `auto`.
        divide: Divides the rows of a single file of training data into splits.
        is_held_out: Whether a row is marked for evaluation only; one such row makes all data for evaluation only.

    Raises:
        DataError: The path or a row is missing or malformed (file, row, field, reason), or there is no row.
        MissingDependencyError: A Parquet file needs pyarrow, which is not installed.
    """
    if path.is_dir():
        return _load_folder(path, reader, split, is_held_out)
    named = split_of_name(path)
    chosen = (named or "train") if split == "auto" else split
    found, digest = reader.read(path)
    reader.finish(any_row=bool(found))
    rows = divide(found) if chosen == "train" else {chosen: tuple(found)}
    evaluation_only = named == "test" or any(map(is_held_out, found))
    info = DataInfo(name=path.name, digest=f"sha256:{digest}", evaluation_only=evaluation_only)
    return TaskData(info=info, rows=rows)


def _load_folder(path: Path, reader: RowReader[Row], split: Split, is_held_out: Callable[[Row], bool]) -> TaskData[Row]:
    if split != "auto":
        raise DataError(f"Option split={split} is for a single file, but {path} is a folder.", remedy=reader.remedy)
    files = files_by_split(path, _ENDINGS, remedy=reader.remedy, choose="keep only one of them", exact_first=True)
    read = {name: reader.read(file) for name, file in files.items()}
    rows = group_by_split((name, row) for name, (found, _) in read.items() for row in found)
    reader.finish(any_row=bool(rows))
    lines = "".join(f"{digest}  {name}\n" for name, (_, digest) in read.items())
    training = [row for name, part in rows.items() if name != "test" for row in part]
    evaluation_only = not training or any(map(is_held_out, training))
    digest = hashlib.sha256(lines.encode()).hexdigest()
    info = DataInfo(name=path.resolve().name, digest=f"sha256:{digest}", evaluation_only=evaluation_only)
    return TaskData(info=info, rows=rows)
