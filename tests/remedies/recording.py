"""Which places of the source gave the remedies that a command printed.

A place is a call with `remedy=` or `fix=`. It is named by file, class and function, and by its number where a function
has several, so that lines may move: `finqa_cli/commands/eval.py:_played#2`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from finqa.calling import Call
from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.errors import FinqaError
from finqa_cli.types import Check, IdleOption
from finqa_plugins.environments._task_files.task_rows import RowReader

ROOT = Path(__file__).parents[2]
KEYWORDS = frozenset({"remedy", "fix"})


@dataclass(frozen=True)
class RemedyCall:
    """A call that gives a remedy.

    Attributes:
        key: Its name; the same as long as its function keeps name and order.
        first: First line of the call.
        last: Last line of the call.
        called: What is called: an exception, or a function of finqa that raises one.
        value: Line and column of the remedy in the source.
    """

    key: str
    first: int
    last: int
    called: str
    value: tuple[int, int]


@cache
def calls_of(name: str) -> tuple[RemedyCall, ...]:
    """Return the calls with a remedy in a file, the innermost first where one contains another.

    Args:
        name: Path of the file from the root of the repository.
    """
    found: list[tuple[str, ast.Call, ast.expr]] = []

    def walk(node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            inner = f"{owner}.{child.name}" if named and owner else child.name if named else owner  # type: ignore[attr-defined]
            if isinstance(child, ast.Call):
                found.extend((owner, child, one.value) for one in child.keywords if one.arg in KEYWORDS)
            walk(child, inner)

    walk(ast.parse((ROOT / name).read_text(encoding="utf-8")), "")
    found.sort(key=lambda each: (each[2].lineno, each[2].col_offset))
    of_owner: dict[str, int] = defaultdict(int)
    calls = []
    for owner, call, value in found:
        of_owner[owner] += 1
        number = f"#{of_owner[owner]}" if sum(each[0] == owner for each in found) > 1 else ""
        called = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        place = (value.lineno, value.col_offset)
        calls.append(RemedyCall(f"{name}:{owner}{number}", call.lineno, call.end_lineno or call.lineno, called, place))
    return tuple(sorted(calls, key=lambda each: each.last - each.first))


@dataclass
class Recording:
    """The remedies that were given while a command ran, and where.

    Attributes:
        given: Text and names of the calls, the innermost first.
    """

    given: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def sites(self, remedy: str) -> set[str]:
        """Return the names of the calls that gave a remedy, as it was printed."""
        printed = _plain(remedy)
        parts = {printed, *re.split(r", (?=--)|; ", printed)}
        return {key for text, keys in self.given if _plain(text) in parts for key in keys}


def _plain(text: str) -> str:
    return " ".join(text.split())


@contextmanager
def recording() -> Iterator[Recording]:
    """Record all remedies of errors, problems of data, checks, idle options, readers of rows and calls in Python."""
    found = Recording()
    made_error, made_problem, made_check, made_reader, made_idle, made_call = (
        each.__init__ for each in (FinqaError, ProblemError, Check, RowReader, IdleOption, Call)
    )

    def error(self: FinqaError, message: str, *, remedy: str = "") -> None:
        made_error(self, message, remedy=remedy)
        if remedy:
            found.given.append((remedy, tuple(_calls_around(sys._getframe(1)))))

    def problem(self: ProblemError, what: Problem, *, remedy: str = "") -> None:
        made_problem(self, what, remedy=remedy)
        if remedy:
            found.given.append((remedy, tuple(_calls_around(sys._getframe(1)))))

    def check(self: Check, **given: Any) -> None:
        made_check(self, **given)
        if self.remedy:
            found.given.append((self.remedy, tuple(_calls_around(sys._getframe(1)))))

    def reader(self: RowReader[Any], *given: Any, remedy: str, **more: Any) -> None:
        made_reader(self, *given, remedy=remedy, **more)
        found.given.append((remedy, tuple(_calls_around(sys._getframe(1)))))

    def idle(self: IdleOption, **given: Any) -> None:
        made_idle(self, **given)
        found.given.append((self.remedy, tuple(_calls_around(sys._getframe(1)))))

    def call(self: Call[Any], **given: Any) -> None:
        made_call(self, **given)
        found.given.append((self.remedy, tuple(_calls_around(sys._getframe(1)))))

    replacements = (
        (FinqaError, error),
        (ProblemError, problem),
        (Check, check),
        (RowReader, reader),
        (IdleOption, idle),
        (Call, call),
    )
    with ExitStack() as patched:
        for kind, replacement in replacements:
            patched.callback(setattr, kind, "__init__", kind.__init__)
            setattr(kind, "__init__", replacement)  # noqa: B010  # mypy takes no assignment to a method
        yield found


def _calls_around(frame: FrameType | None) -> Iterator[str]:
    """Yield the call that gives the remedy, and those of the functions that pass it on, without a gap."""
    below = ""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.endswith("finqa_cli/errors.py") and frame.f_code.co_name == "__init__":  # a class with more to say
            frame = frame.f_back
            continue
        if not path.startswith(str(ROOT)) or "/tests/" in path:
            return
        name = Path(path).relative_to(ROOT).as_posix()
        line = frame.f_lineno
        at = [call for call in calls_of(name) if call.first <= line <= call.last and below in ("", call.called)]
        if not at:
            return
        yield at[0].key
        below = frame.f_code.co_name
        if below == "__init__":
            below = type(frame.f_locals.get("self")).__name__
        frame = frame.f_back
