"""The generated family of simple functions as tasks."""

from __future__ import annotations

from finqa_plugins.environments._list_functions.family import ARGUMENTS, FUNCTION, ListFunction, list_functions
from finqa_plugins.environments.code_tasks.code_problems import CodeTask


def function_tasks(count: int, seed: int) -> tuple[CodeTask, ...]:
    """`count` different tasks; see `list_functions`."""
    return tuple(_task(function) for function in list_functions(count, seed))


def _task(function: ListFunction) -> CodeTask:
    return CodeTask(
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
