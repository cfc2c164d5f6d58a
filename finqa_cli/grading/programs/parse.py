"""Reads the text of a program, in linear time and without recursion.

Three notations, all of which become the same list of steps:

- Flat, that of the data set: `subtract(5829, 5735), divide(#0, 5735)`, with or without a last `EOF`.
- Nested, its `program_re`: `divide(subtract(5829, 5735), 5735)`. Inner operations become earlier steps.
- Infix, which policies often write: `divide(subtract(2457, 2156), 2457) * 100`, with `+ - * /`, the usual precedence
  and brackets. The operators become `add`, `subtract`, `multiply` and `divide`; literals stay as they are written.

In a list of several items each item is one operation, so that `#k` is unambiguous.

A comma followed by a blank is a separator, as for the official tokenizer, and any other comma belongs to a number. Row
names with brackets or such a separator therefore cannot be written. Unlike for the official tokenizer, blanks around
names, brackets and commas do not matter, and a truncated last step is an error; the official script ignores it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from finqa_cli.grading.programs.program import (
    LITERAL,
    MAX_CHARACTERS,
    MAX_STEPS,
    NUMBER_OPERATIONS,
    TABLE_OPERATIONS,
    Argument,
    Program,
    ProgramError,
    Reference,
    Step,
    shown,
)

_BLANKS = re.compile(r"\s*")
_CALL = re.compile(r"([A-Za-z_]+)\s*\(")
_REFERENCE = re.compile(r"#([0-9]{1,9})(?![0-9])")
_COMMA = re.compile(r",\s+")
_END = re.compile(r"(?:(?:,\s+)?EOF)?\s*\Z")
_INFIX = {"+": ("add", 1), "-": ("subtract", 1), "*": ("multiply", 2), "/": ("divide", 2)}


@dataclass(frozen=True, slots=True)
class _Open:
    """An open bracket; `operation` is empty for a bracket that only groups."""

    operation: str
    position: int
    first: Argument | None = None


@dataclass(frozen=True, slots=True)
class _Infix:
    """An operator whose right side is not read yet."""

    operation: str
    precedence: int
    left: Argument
    position: int


def parse(text: str) -> Program:
    """Reads a program.

    Raises:
        ProgramError: The text is not a program, has more than `MAX_CHARACTERS` characters or `MAX_STEPS` steps, or
            refers to a step that is not an earlier one. The error has the position.
    """
    if len(text) > MAX_CHARACTERS:
        raise ProgramError(f"longer than {MAX_CHARACTERS} characters", position=MAX_CHARACTERS)
    return _Parser(text).program()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._waiting: list[_Open | _Infix] = []
        self._steps: list[Step] = []
        self._items = 0

    def program(self) -> Program:
        while True:
            value = self._operand()
            while self._take_closing():
                value = self._closed(value)
            if _END.match(self._text, self._at):
                self._finish_item(value, is_last=True)
                return Program(tuple(self._steps))
            self._read_separator(value)

    def _operand(self) -> Argument:
        """Reads up to the end of a literal, a reference or a table operation, opening the brackets before it."""
        while True:
            self._skip_blanks()
            if call := _CALL.match(self._text, self._at):
                operation = call[1]
                if operation in TABLE_OPERATIONS:
                    return self._table_step(operation, call.end())
                if operation not in NUMBER_OPERATIONS:
                    raise self._error(f"there is no operation {shown(operation)}")
                self._waiting.append(_Open(operation, self._at))
                self._at = call.end()
            elif self._text.startswith("(", self._at):
                self._waiting.append(_Open("", self._at))
                self._at += 1
            else:
                return self._atom()

    def _atom(self) -> Argument:
        if found := _REFERENCE.match(self._text, self._at):
            if int(found[1]) >= self._items:
                raise self._error(f"{found[0]} is not the result of an earlier step")
            self._at = found.end()
            return Reference(int(found[1]))
        literal = LITERAL.match(self._text, self._at)
        if not literal:
            raise self._error(f"expected an operation, a number or #k, found {self._found()}")
        self._at = literal.end()
        return literal[0]

    def _table_step(self, operation: str, start: int) -> Argument:
        """Reads `row name, none)`; the name may contain any characters except brackets and a comma before a blank."""
        end = self._text.find(")", start)
        names = _COMMA.split(self._text[start:end].strip() + " ") if end >= 0 else []
        names = [name.strip() for name in names]
        if len(names) != 2 or not all(names) or any("(" in name for name in names):
            raise self._error(f"{operation} takes a row's name and `none`, without brackets, separated by ', '")
        if _REFERENCE.fullmatch(names[0]):
            raise self._error(f"{operation} reads a row of the table, not the result of a step")
        value = self._emit(Step(operation, names[0], names[1]), self._at)
        self._at = end + 1
        return value

    def _closed(self, value: Argument) -> Argument:
        """Returns the value of the bracket that ends before `self._at`; `value` is that of its last part."""
        value, bracket = self._reduced(value, 0), self._waiting.pop() if self._waiting else None
        if not isinstance(bracket, _Open):
            raise self._error("this bracket was never opened", self._at - 1)
        if not bracket.operation:
            return value
        if bracket.first is None:
            raise self._error(f"{bracket.operation} takes two arguments, separated by ', '", self._at - 1)
        return self._emit(Step(bracket.operation, bracket.first, value), bracket.position)

    def _read_separator(self, value: Argument) -> None:
        """Reads the operator or comma after a value."""
        if infix := _INFIX.get(self._text[self._at : self._at + 1]):
            operation, precedence = infix
            self._waiting.append(_Infix(operation, precedence, self._reduced(value, precedence), self._at))
            self._at += 1
            return
        comma = _COMMA.match(self._text, self._at)
        if not comma:
            raise self._error(f"expected an operator, ')' or a comma and a blank, found {self._found()}")
        value = self._reduced(value, 0)
        if not self._waiting:
            self._finish_item(value, is_last=False)
        else:
            bracket = self._waiting[-1]
            if not isinstance(bracket, _Open) or not bracket.operation or bracket.first is not None:
                raise self._error("an argument too many")
            self._waiting[-1] = replace(bracket, first=value)
        self._at = comma.end()

    def _finish_item(self, value: Argument, *, is_last: bool) -> None:
        self._reduced(value, 0)
        if self._waiting:
            raise self._error("this bracket is never closed", self._waiting[-1].position)
        self._items += 1
        if not self._steps:
            raise self._error("there is no operation in it")
        is_alone = is_last and self._items == 1
        if not is_alone and len(self._steps) != self._items:
            raise self._error("in a list of steps each item is one operation")

    def _reduced(self, value: Argument, precedence: int) -> Argument:
        """Returns the value after applying all waiting operators of at least this precedence."""
        while self._waiting and isinstance(infix := self._waiting[-1], _Infix) and infix.precedence >= precedence:
            self._waiting.pop()
            value = self._emit(Step(infix.operation, infix.left, value), infix.position)
        return value

    def _emit(self, step: Step, position: int) -> Reference:
        if len(self._steps) == MAX_STEPS:
            raise self._error(f"more than {MAX_STEPS} operations", position)
        self._steps.append(step)
        return Reference(len(self._steps) - 1)

    def _take_closing(self) -> bool:
        self._skip_blanks()
        found = self._text.startswith(")", self._at)
        self._at += found
        return found

    def _skip_blanks(self) -> None:
        if blanks := _BLANKS.match(self._text, self._at):
            self._at = blanks.end()

    def _found(self) -> str:
        return shown(self._text[self._at :]) if self._at < len(self._text) else "the end"

    def _error(self, reason: str, position: int | None = None) -> ProgramError:
        return ProgramError(reason, position=self._at if position is None else position)
