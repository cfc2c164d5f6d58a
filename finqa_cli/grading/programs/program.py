"""Programs: a list of steps, each of which may use the results of earlier ones."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_CHARACTERS = 4096
"""Largest number of characters of a program. The longest in FinQA has 120."""
MAX_STEPS = 64
"""Largest number of operations of a program. The longest in FinQA has 5."""

NUMBER_OPERATIONS = frozenset({"add", "subtract", "multiply", "divide", "exp", "greater"})
TABLE_OPERATIONS = frozenset({"table_max", "table_min", "table_sum", "table_average"})

_NUMBER = r"(?:[0-9]+(?:,[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
LITERAL = re.compile(rf"[-+]?{_NUMBER}(?: ?%)?|const_(?:m1|{_NUMBER})")
"""A number of a program: `5,829`, `-32`, `.450`, `6.9%`, `const_100`, `const_m1`."""

_LONGEST_SHOWN = 40


class ProgramError(ValueError):
    """A text is not a program, or a program has no result.

    Attributes:
        reason: What is wrong, in one sentence.
        position: Character at which the text stops being a program, from 0; None if the text is a program.
        step: Step that has no result, from 0; None if the text is not a program.
    """

    def __init__(self, reason: str, *, position: int | None = None, step: int | None = None) -> None:
        place = f"Step #{step}" if step is not None else f"Character {position}"
        super().__init__(f"{place}: {reason}")
        self.reason = reason
        self.position = position
        self.step = step


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference such as `#2`: the result of the step with this index, from 0."""

    step: int

    def __str__(self) -> str:
        return f"#{self.step}"


Argument = str | Reference
"""A number, constant or row name as it was written, or the result of an earlier step."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on two arguments.

    The first argument of a table operation is the name of a row; its second one, `none` in the data, is ignored.
    """

    operation: str
    first: Argument
    second: Argument

    @property
    def reads_table(self) -> bool:
        """Whether its first argument is the name of a row."""
        return self.operation in TABLE_OPERATIONS

    def __str__(self) -> str:
        return f"{self.operation}({self.first}, {self.second})"


@dataclass(frozen=True, slots=True)
class Program:
    """One to `MAX_STEPS` steps; references point to earlier steps. As text it has the flat form of the data set."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.steps))


def shown(text: str) -> str:
    """Returns text of a program in quotes on one line, truncated, with unprintable and non-ASCII characters escaped."""
    cut = text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."
    return ascii(cut)
