"""Checks whether two programs compute the same formula, which is FinQA's program accuracy.

Each literal (by its text, not its value: `5%` and `0.05` differ) and each table step is a symbol, and the programs'
last steps are compared as formulas over these symbols. The official evaluation asks sympy to simplify both; here both
are evaluated at one pseudo-random point of a large prime field, where different rational functions of degree d agree
with probability d / 2^255 at most (Schwartz-Zippel). `MAX_STEPS` bounds d by 2^64. The cost is one operation in the
field per step, however long the formulas are when they are written out.

For `add`, `subtract`, `multiply` and `divide` the result is that of sympy. There are these differences:

- `exp(x, y)` is an unknown function of x and y: it is equal for equal bases and exponents, but the rule
  a^x a^y = a^(x + y) is not applied.
- `greater(x, y)` is an unknown function of x - y. sympy also finds some common factors.
- A step is undefined if it uses the result of `greater` or divides by a formula that is identically zero. It is
  equivalent to nothing.
- Equal table steps are the same symbol at every place; the official script distinguishes the first step from others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from finqa_cli.grading.programs.program import Argument, Program, Reference, Step

PRIME = 0x96EDC7EA458BB8F70257AF970A456173D4FCB42D76D79A333124FE8D105E78AF
"""The smallest prime that is not less than SHA-256 of `finqa` with the highest and lowest bit set.

A prime of a special form, such as 2^255 - 19, would be unsafe: a short program could compute it, and thereby a zero.
"""


def difference(predicted: Program, gold: Program) -> str:
    """Returns why the programs are not equivalent by the official definition; "" if they are.

    The predicted program may only contain literals and table steps of the gold program, even in steps that its last
    step does not use.
    """
    known = {symbol for step in gold.steps for symbol in _symbols(step)}
    for place, step in enumerate(predicted.steps):
        if any(symbol not in known for symbol in _symbols(step)):
            return f"step #{place} uses a number or row that the expected program does not"
    value = _field_values(predicted)[-1]
    if value is None:
        return "the last step has no result for any numbers"
    return "" if value == _field_values(gold)[-1] else "another formula than the expected one"


def overlap(predicted: Program, gold: Program) -> float:
    """Returns the share of the gold program's steps, from 0 to 1, with an equivalent step in the predicted program.

    Steps are compared by the formulas that they compute, so order and numbering do not matter, and repeating a step
    does not increase the share.
    """
    computed = set(_field_values(predicted)) - {None}
    return sum(value in computed for value in _field_values(gold)) / len(gold.steps)


def _symbols(step: Step) -> Sequence[str]:
    if step.reads_table:
        return (str(step),)
    return [argument for argument in (step.first, step.second) if isinstance(argument, str)]


def _field_values(program: Program) -> list[int | str | None]:
    """Returns the values of the steps' formulas at the point; a text for `greater`; None for an undefined step."""
    values: list[int | str | None] = []
    for step in program.steps:
        values.append(_point("row", str(step)) if step.reads_table else _field_value(step, values))
    return values


def _field_value(step: Step, values: Sequence[int | str | None]) -> int | str | None:
    first, second = _field_operand(step.first, values), _field_operand(step.second, values)
    if not isinstance(first, int) or not isinstance(second, int):
        return None
    match step.operation:
        case "add":
            return (first + second) % PRIME
        case "subtract":
            return (first - second) % PRIME
        case "multiply":
            return first * second % PRIME
        case "divide":
            return first * pow(second, -1, PRIME) % PRIME if second else None
        case "exp":
            return _point("exp", f"{first:x} {second:x}")
        case _:
            return f"greater {(first - second) % PRIME:x}"


def _field_operand(argument: Argument, values: Sequence[int | str | None]) -> int | str | None:
    return values[argument.step] if isinstance(argument, Reference) else _point("literal", argument)


def _point(kind: str, text: str) -> int:
    """Returns the coordinate of a symbol, which is fixed and pseudo-random."""
    digest = hashlib.sha512(f"{kind} {text}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest, "big") % PRIME
