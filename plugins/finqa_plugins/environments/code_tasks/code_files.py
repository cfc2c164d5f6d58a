"""Reads tasks from a TOML file, from a Python file with `TASKS = {...}`, or from a folder of such files.

A Python file is read, never executed: `TASKS` and the texts that it names are literals.
"""

from __future__ import annotations

import ast
import hashlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError
from finqa_cli.types import DataInfo
from finqa_cli.types.splits import split_of_name
from finqa_plugins.environments.code_tasks.code_problems import CodeTask, InputError, read_task

MAX_BYTES = 2**24
_READERS = (".toml", ".py")
_REMEDY = "--data takes a TOML file with a table per task, a Python file with TASKS = {...}, or a folder of such files"


def load(path: Path) -> tuple[DataInfo, tuple[CodeTask, ...]]:
    """The tasks at a path. A table without `split` is of the split that its file's name speaks of, else `train`.

    Raises:
        DataError: The path or a task is missing or malformed (file, task, field, reason), or there is no task.
    """
    files = sorted(file for file in path.iterdir() if file.suffix in _READERS) if path.is_dir() else [path]
    tasks: dict[str, CodeTask] = {}
    digest = hashlib.sha256()
    for file in files:
        try:
            content = _content(file)
            found = _tasks(file, content)
            if twice := found.keys() & tasks.keys():
                raise InputError(f"task {min(twice)!r} is in another file, too")
        except InputError as error:
            raise DataError(f"{file}: {error}.", remedy=_REMEDY) from error
        tasks |= found
        digest.update(f"{hashlib.sha256(content).hexdigest()}  {file.name}\n".encode())
    if not tasks:
        raise DataError(f"{path} holds no task.", remedy=_REMEDY)
    return DataInfo(name=path.resolve().name, digest=f"sha256:{digest.hexdigest()}"), tuple(tasks.values())


def _content(path: Path) -> bytes:
    try:
        if not path.is_file():  # a pipe would be waited for, without end
            raise InputError("there is no such file" if not path.exists() else "is neither a file nor a folder")
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"is larger than {MAX_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from error


def _tasks(path: Path, content: bytes) -> dict[str, CodeTask]:
    if path.suffix not in _READERS:
        raise InputError("is neither .toml nor .py")
    try:
        text = content.decode("utf-8-sig")
        tables = tomllib.loads(text) if path.suffix == ".toml" else _literal_tasks(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise InputError(f"cannot be read: {error}") from error
    split = split_of_name(path) or "train"
    return {str(name): read_task(str(name), table, split) for name, table in tables.items()}


def _literal_tasks(text: str) -> Mapping[str, Any]:
    """The value of `TASKS`, in which names of earlier literals may stand."""
    known: dict[str, ast.expr] = {}
    for statement in ast.parse(text).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                known[name] = _Constants(known).visit(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                known[name] = _Constants(known).visit(value)
    if "TASKS" not in known:
        raise InputError("has no TASKS = {...}")
    try:
        found = ast.literal_eval(known["TASKS"])
    except ValueError as error:
        raise InputError("TASKS is no literal: it is read, not executed") from error
    if not isinstance(found, dict):
        raise InputError("TASKS is no dictionary")
    return found


class _Constants(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, ast.expr]) -> None:
        self._known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._known.get(node.id, node)
