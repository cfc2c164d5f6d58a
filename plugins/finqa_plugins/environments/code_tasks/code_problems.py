"""One task of the `code` environment, as files and the embedded families give it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from finqa_cli.types.splits import SPLIT_NAMES
from finqa_plugins.sandboxes._execution.bans import check_pattern


class InputError(ValueError):
    """A task cannot be read; the message has field and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTask:
    """A function to be written, and what it is judged by.

    Attributes:
        id: The name of its table.
        prompt: What the policy reads: a description, or the beginning of a program that ends in the function's head.
        func_name: The function.
        tests: Expressions, each of which gives the argument of one test.
        reference: An expression that gives the right function, or the right result for an argument `xs`.
        banned: What the code may not use, as `code_judge.bans` reads it.
        split: `train`, `dev` or `test`.
        tolerance: By which floats may differ, relative or absolute; 0 compares by `==`.
        many_arguments: Each test gives a tuple of arguments instead of one argument.
        setup: Trusted code before tests and reference; what the policy wrote never sees it.
        solution: A whole right program, for demonstrations; may be empty.
        kind: For breakdowns; may be empty.
        careless: What a careless programmer writes instead of the solution; empty for no such demonstration.
    """

    id: str
    prompt: str
    func_name: str
    tests: tuple[str, ...]
    reference: str
    banned: tuple[str, ...] = ()
    split: str = "train"
    tolerance: float = 0.0
    many_arguments: bool = False
    setup: str = ""
    solution: str = ""
    kind: str = ""
    careless: str = field(default="", repr=False)


class _Table(BaseModel):
    """The fields of a task in a file, by the names that the seed gave them."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    prompt: str = Field(min_length=1)
    func_name: str
    tests: list[str] = Field(min_length=1, max_length=1000)
    reference: str = Field(min_length=1)
    banned_patterns: list[str] = []
    split: str = "train"
    tolerance: float = Field(default=0.0, ge=0)
    many_arguments: bool = False
    setup: str = ""
    solution: str = ""
    kind: str = ""

    @field_validator("func_name")
    @classmethod
    def _identifier(cls, value: str) -> str:
        if not value.isidentifier():
            raise ValueError("is no name of a function")
        return value

    @field_validator("split")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in SPLIT_NAMES:
            raise ValueError(f"is none of {', '.join(SPLIT_NAMES)}")
        return SPLIT_NAMES[value]

    @field_validator("banned_patterns")
    @classmethod
    def _patterns(cls, value: list[str]) -> list[str]:
        for pattern in value:
            if problem := check_pattern(pattern):
                raise ValueError(f"{pattern!r} {problem}")
        return value


def read_task(name: str, table: object, split: str) -> CodeTask:
    """A task from its table.

    Args:
        name: Of the table; becomes the id.
        table: As the file has it.
        split: Of the file, for a table that names none.

    Raises:
        InputError: A field is missing, unknown or malformed.
    """
    if not isinstance(table, Mapping):
        raise InputError(f"task {name!r} is no table of fields")
    try:
        read = _Table.model_validate({"split": split, **table})
    except ValidationError as error:
        raise InputError(f"task {name!r}, {_first(error)}") from error
    fields = read.model_dump(exclude={"banned_patterns"})
    return CodeTask(id=name, banned=tuple(read.banned_patterns), **{**fields, "tests": tuple(read.tests)})


def _first(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in problem["loc"])
    return f"field {name!r}: {problem['msg'].removeprefix('Value error, ')}"
