"""The questions of a compiled snapshot."""

from __future__ import annotations

import json
from pathlib import Path

from finqa_cli.errors import DataError
from finqa_cli.types import Task, rebuild_command

_FIELDS = ("id", "company", "user_query", "split")


def read_tasks(path: Path, name: str) -> list[Task]:
    """Read the tasks of a compiled snapshot in the order of the file.

    Args:
        path: The file.
        name: Name of the snapshot, for the command that builds it again.

    Raises:
        DataError: The file is missing, a line is not a JSON object, a field is missing, or an id appears twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # splitlines would cut at U+2028 too
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Cannot read {path}: {error}", remedy=rebuild_command(name)) from error
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, start=1):
        try:
            task = _task(line)
            if task.id in tasks:
                raise ValueError(f": id {task.id!r} appears twice")
        except ValueError as error:
            raise DataError(f"{path}, line {number}{error}.", remedy=rebuild_command(name)) from error
        tasks[task.id] = task
    return list(tasks.values())


def _task(line: str) -> Task:
    """Read the task in one line; raises a ValueError with a message that follows the number of the line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f": not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(": not a JSON object")
    for field in _FIELDS:
        if not isinstance(row.get(field), str) or not row[field]:
            raise ValueError(f", field {field!r}: missing or no text")
    return Task(
        id=row["id"],
        prompt=row["user_query"],
        split=row["split"],
        cluster=row["company"],
        kind=str(row.get("type") or ""),
    )
