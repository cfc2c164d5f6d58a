"""Executes programs, by the rules of FinQA's official evaluation.

It is stricter in two ways: a step whose result is complex or not finite is an error even when no later step uses it,
and a table operation never takes the result of a step.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from finqa_cli.grading.programs.program import LITERAL, Argument, Program, ProgramError, Reference, Step, shown

ProgramTable = Sequence[Sequence[str]]
"""Rows of cells as FinQA writes them, header included; the first cell of a row is its name."""

Value = float | Literal["yes", "no"]

DECIMALS = 5
"""Decimals to which the last step's result is rounded."""

_ARITHMETIC: Mapping[str, Callable[[float, float], float | complex]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "exp": operator.pow,
}
_ROW_OPERATIONS: Mapping[str, Callable[[list[float]], float]] = {
    "table_max": max,
    "table_min": min,
    "table_sum": sum,
    "table_average": lambda numbers: sum(numbers) / len(numbers),
}


def execute(program: Program, table: ProgramTable) -> Value:
    """Returns the result of the last step: a finite number rounded to 5 decimals, or "yes" or "no" of `greater`.

    Every step is executed, in floating point, in the order of the program.

    Raises:
        ProgramError: A step has no result. It names step and reason: division by zero, a complex, too large or
            undefined result, "yes" or "no" as an argument, or a row that is missing or contains anything but numbers.
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
        return _finite(_ROW_OPERATIONS[step.operation](row_numbers(table, str(step.first))))
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


def number(text: str) -> float | None:
    """Returns the value of a literal, None for any other text; infinite if it is too large for a float.

    Commas are removed, `6.9%` is 0.069, `const_100` is 100 and `const_m1` is -1. The official evaluation also accepts
    everything that Python reads as a float: `nan`, `1_000`, digits of other scripts.
    """
    if not LITERAL.fullmatch(text):
        return None
    if text == "const_m1":
        return -1.0
    plain = text.removeprefix("const_").replace(",", "")
    return float(plain[:-1]) / 100 if plain.endswith("%") else float(plain)


def row_numbers(table: ProgramTable, name: str) -> list[float]:
    """Returns the numbers of a row, at least one.

    If several rows have the same name, the last one is read. In a cell, `$` and text from an opening bracket on are
    ignored, so that `$ -32 ( 32 )` is -32.

    Raises:
        ValueError: There is no such row, it has no cells, or one of them is not a number.
    """
    cells = {row[0]: row[1:] for row in table if row}.get(name)
    if cells is None:
        raise ValueError(f"the table has no row {shown(name)}")
    if not cells:
        raise ValueError(f"the row {shown(name)} has no cells")
    numbers = []
    for cell in cells:
        value = number(cell.replace("$", "").split("(")[0].strip())
        if value is None:
            raise ValueError(f"the row {shown(name)} has a cell that is not a number: {shown(cell)}")
        numbers.append(value)
    return numbers
