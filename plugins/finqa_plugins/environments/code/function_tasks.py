"""Tasks of the environment `code`: a function to write, its tests and a reference.

They come from a TOML file, from a Python file with `TASKS = {...}`, or from a folder of such files; embedded ones come
from `seed_tasks.toml` or from `list_functions`. A Python file is read, never executed: `TASKS` and the texts that it
names are literals.
"""

from __future__ import annotations

import ast
import hashlib
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError, field_validator

from finqa_cli.documents import parse_toml
from finqa_cli.errors import DataError
from finqa_cli.types import DataInfo
from finqa_cli.types.splits import SPLIT_NAMES, split_of_name
from finqa_plugins.environments._task_files.task_rows import RowError, read_content
from finqa_plugins.environments.code.list_functions import ARGUMENTS, FUNCTION, list_functions
from finqa_plugins.sandboxes._execution.bans import check_pattern

MAX_BYTES = 2**24
_READERS = (".toml", ".py")
_REMEDY = "--data with a TOML file with a table per task, a Python file with TASKS = {...}, or a folder of such files"


class FunctionTask(BaseModel):
    """A function to write, with its tests. Except for `banned`, fields have the same names in files.

    Attributes:
        id: Name of its table in the file.
        prompt: What the policy reads: a description, or the beginning of a program that ends with the function's head.
        func_name: Name of the function.
        tests: Expressions, each of which gives the argument of one test.
        reference: An expression that gives the right function, or the right result for an argument `xs`.
        banned: What the code may not use, as `_execution.bans` reads it; `banned_patterns` in a file.
        split: `train`, `dev` or `test`.
        tolerance: Largest difference of floats, relative or absolute; 0 compares by `==`.
        many_arguments: Each test gives a tuple of arguments instead of one argument.
        setup: Trusted code before tests and reference; it never runs together with code of the policy.
        solution: A complete correct program, for demonstrations; may be empty.
        kind: Group in breakdowns of measures; may be empty.
        careless: What a careless programmer writes instead of the solution; empty if there is none. Only generated
            tasks have it; it is not allowed in files.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    id: str
    prompt: str = Field(min_length=1)
    func_name: str
    tests: tuple[StrictStr, ...] = Field(min_length=1, max_length=1000, strict=False)
    reference: str = Field(min_length=1)
    banned: tuple[StrictStr, ...] = Field(default=(), alias="banned_patterns", strict=False)
    split: str = "train"
    tolerance: float = Field(default=0.0, ge=0)
    many_arguments: bool = False
    setup: str = ""
    solution: str = ""
    kind: str = ""
    careless: str = Field(default="", repr=False)

    @field_validator("func_name")
    @classmethod
    def _identifier(cls, value: str) -> str:
        if not value.isidentifier():
            raise ValueError("is not the name of a function")
        return value

    @field_validator("split")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in SPLIT_NAMES:
            raise ValueError(f"is none of {', '.join(SPLIT_NAMES)}")
        return SPLIT_NAMES[value]

    @field_validator("banned")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            if problem := check_pattern(pattern):
                raise ValueError(f"{pattern!r} {problem}")
        return value


def read_task(name: str, table: object, split: str) -> FunctionTask:
    """Read a task from its table.

    Args:
        name: Name of the table; becomes the id.
        table: The table as the file has it.
        split: Split of a table without `split`.

    Raises:
        RowError: A field is missing, unknown or malformed.
    """
    if not isinstance(table, Mapping):
        raise RowError(f"task {name!r} is not a table of fields")
    if own := sorted({"id", "careless"} & table.keys()):
        raise RowError(f"task {name!r}, field {own[0]!r}: is not allowed in files")
    try:
        return FunctionTask.model_validate({"id": name, "split": split, **table})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"]))
        reason = problem["msg"].removeprefix("Value error, ")
        raise RowError(f"task {name!r}, field {field!r}: {reason}") from error


def load_tasks(path: Path) -> tuple[DataInfo, tuple[FunctionTask, ...]]:
    """Read the tasks at a path. A table without `split` gets the split in the name of its file, else `train`.

    Raises:
        DataError: The path or a task is missing or malformed (file, task, field, reason), or there is no task.
    """
    files = sorted(file for file in path.iterdir() if file.suffix in _READERS) if path.is_dir() else [path]
    tasks: dict[str, FunctionTask] = {}
    digest = hashlib.sha256()
    for file in files:
        try:
            content = read_content(file, MAX_BYTES)
            found = _tasks(file, content)
            if twice := found.keys() & tasks.keys():
                raise RowError(f"task {min(twice)!r} is also in another file")
        except RowError as error:
            raise DataError(f"{file}: {error}.", remedy=_REMEDY) from error
        tasks |= found
        digest.update(f"{hashlib.sha256(content).hexdigest()}  {file.name}\n".encode())
    if not tasks:
        raise DataError(f"{path} holds no task.", remedy=_REMEDY)
    return DataInfo(name=path.resolve().name, digest=f"sha256:{digest.hexdigest()}"), tuple(tasks.values())


def _tasks(path: Path, content: bytes) -> dict[str, FunctionTask]:
    if path.suffix not in _READERS:
        raise RowError("is neither .toml nor .py")
    try:
        text = content.decode("utf-8-sig")
        tables = parse_toml(text) if path.suffix == ".toml" else _literal_tasks(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise RowError(f"cannot be read: {error}") from error
    split = split_of_name(path) or "train"
    return {str(name): read_task(str(name), table, split) for name, table in tables.items()}


def _literal_tasks(text: str) -> Mapping[str, Any]:
    """Return the value of `TASKS`, which may use the names of earlier literals."""
    known: dict[str, ast.expr] = {}
    for statement in ast.parse(text).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                known[name] = _Constants(known).visit(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                known[name] = _Constants(known).visit(value)
    if "TASKS" not in known:
        raise RowError("has no TASKS = {...}")
    try:
        found = ast.literal_eval(known["TASKS"])
    except ValueError as error:
        raise RowError("TASKS is not a literal: the file is parsed, not executed") from error
    if not isinstance(found, dict):
        raise RowError("TASKS is not a dictionary")
    return found


class _Constants(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, ast.expr]) -> None:
        self._known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._known.get(node.id, node)


def seed_tasks() -> tuple[FunctionTask, ...]:
    """Return the embedded tasks: `sorting` and `max_subarray` in `train`, and similar tasks in `dev` and in `test`."""
    text = resources.files("finqa_plugins.environments.code").joinpath("seed_tasks.toml").read_text(encoding="utf-8")
    return tuple(read_task(name, table, "train") for name, table in tomllib.loads(text).items())


def generated_tasks(count: int, seed: int) -> tuple[FunctionTask, ...]:
    """Make `count` different tasks of the generated family; see `list_functions`."""
    return tuple(
        FunctionTask(
            id=function.id,
            prompt=function.text,
            func_name=FUNCTION,
            tests=ARGUMENTS,
            reference=function.reference,
            split=function.split,
            solution=function.solution,
            careless=function.careless,
            kind=function.kind,
        )
        for function in list_functions(count, seed)
    )
