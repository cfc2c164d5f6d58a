"""Arithmetic in experiment files: a text that begins with `=` is a formula over the file's variables."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

Scalar = bool | int | float | str

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class FormulaError(Exception):
    """What is wrong with a formula, in words that follow it."""


def is_formula(value: object) -> bool:
    """Whether a value of the file is to be calculated."""
    return isinstance(value, str) and value.startswith("=")


def calculated(value: Any, names: Mapping[str, Scalar]) -> Any:
    """The value with every formula in it replaced by its result; tables and lists are gone through.

    Raises:
        FormulaError: A formula is malformed, names no variable, or has no result.
    """
    if isinstance(value, Mapping):
        return {key: calculated(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [calculated(item, names) for item in value]
    return calculate(value, names) if is_formula(value) else value


def calculate(formula: str, names: Mapping[str, Scalar]) -> Scalar:
    """The result of one formula: numbers, texts in quotes, variables, + - * / //, comparisons, and, or, not, `A if B
    else C`.

    Raises:
        FormulaError: See `calculated`.
    """
    try:
        tree = ast.parse(formula.removeprefix("=").strip(), mode="eval")
        result: Scalar = _value(tree.body, names)
    except FormulaError as error:
        raise FormulaError(f"{formula!r}: {error}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormulaError(f"{formula!r} is no formula") from error
    except (ArithmeticError, TypeError) as error:
        raise FormulaError(f"{formula!r} has no result: {error}") from error
    return result


def _value(node: ast.expr, names: Mapping[str, Scalar]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise FormulaError(f"there is no variable {name}")
            return names[name]
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            return _value(body if _value(test, names) else otherwise, names)
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, names) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, names) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, names)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.Compare(left=left, ops=[comparison], comparators=[right]) if type(comparison) in _COMPARISONS:
            return _COMPARISONS[type(comparison)](_value(left, names), _value(right, names))
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _BINARY:
            return _combined(operation, _value(left, names), _value(right, names))
    raise FormulaError(f"{ast.unparse(node)!r} is not among what formulas take")


def _combined(operation: ast.operator, left: Scalar, right: Scalar) -> Any:
    if (isinstance(left, str) or isinstance(right, str)) and not isinstance(operation, ast.Add):
        raise FormulaError("texts are only joined, by +")
    return _BINARY[type(operation)](left, right)
