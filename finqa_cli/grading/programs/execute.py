"""Executes programs, by the rules of FinQA's official evaluation.

It is stricter in two ways: a step whose result is complex or not finite is an error even when no later step uses it,
and a table operation never takes the result of a step.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Literal

from finqa_cli.grading.programs.program import Argument, Program, ProgramError, Reference, Step
from finqa_cli.grading.programs.program_tables import ProgramTable, number, row_numbers

Value = float | Literal["yes", "no"]

DECIMALS = 5
"""To which the last step's result is rounded."""

_ARITHMETIC: Mapping[str, Callable[[float, float], float | complex]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "exp": operator.pow,
}
_OF_ROW: Mapping[str, Callable[[list[float]], float]] = {
    "table_max": max,
    "table_min": min,
    "table_sum": sum,
    "table_average": lambda numbers: sum(numbers) / len(numbers),
}


def execute(program: Program, table: ProgramTable) -> Value:
    """The result of the last step: a finite number rounded to 5 decimals, or "yes" or "no" of `greater`.

    Every step is executed, in floating point, in the order of the program.

    Raises:
        ProgramError: With the step and the reason: division by zero, a complex, too large or undefined result, "yes"
            or "no" as an argument, or a row that is missing or holds anything but numbers.
    """
    results: list[Value] = []
    for place, step in enumerate(program.steps):
        try:
            results.append(_result(step, results, table))
        except ZeroDivisionError:
            raise ProgramError("division by zero", step=place) from None
        except OverflowError:
            raise ProgramError("the result is too large", step=place) from None
        except ValueError as error:
            raise ProgramError(str(error), step=place) from None
    last = results[-1]
    return last if isinstance(last, str) else round(last, DECIMALS)


def _result(step: Step, results: list[Value], table: ProgramTable) -> Value:
    if step.reads_table:
        return _finite(_OF_ROW[step.operation](row_numbers(table, str(step.first))))
    first, second = _operand(step.first, results), _operand(step.second, results)
    if step.operation == "greater":
        return "yes" if first > second else "no"
    return _finite(_ARITHMETIC[step.operation](first, second))


def _operand(argument: Argument, results: list[Value]) -> float:
    value = results[argument.step] if isinstance(argument, Reference) else number(argument)
    if isinstance(value, str):
        raise ValueError(f"{argument} is {value!r}, not a number")
    if value is None:
        raise ValueError(f"{argument} is not a number")
    return _finite(value)


def _finite(value: float | complex) -> float:
    if isinstance(value, complex):
        raise ValueError("a root of a negative number")
    if not math.isfinite(value):
        raise ValueError("a number too large, or undefined")
    return value
