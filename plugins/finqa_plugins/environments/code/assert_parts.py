"""Splits a test into expressions that need the solution, and a condition on their values.

In `assert isclose(area(2), 4.0)` only `area(2)` needs the solution. It is evaluated in the process of the solution,
which returns its value. The condition `isclose(_asked_0, 4.0)` is evaluated in another process, which contains no code
of the solution. So a solution that patches `==`, exits early or prints anything can at most return other values.
"""

from __future__ import annotations

import ast
import builtins
import sys
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass

ASKED = "_asked_"
_BUILTINS = frozenset(dir(builtins))
_CONTAINERS = frozenset({"list", "tuple", "set", "frozenset", "sorted", "dict", "next"})
"""Builtins that make plain data of an iterable, or take it from one. `set(f(2))` is evaluated as a whole in the
solution's process, because `f` may return a `map`, which is not plain data. Code that replaces these builtins can only
return another value.
"""
_MAX_CHARACTERS = 100_000


class TestProblem(ValueError):
    """The test cannot be split; the message states why."""

    __test__ = False


@dataclass(frozen=True, slots=True)
class Expected:
    """The constant that the value of the only asked expression must equal."""

    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTest:
    """One test of a problem.

    Attributes:
        source: Text of the test in the data.
        asked: Expressions that the solution's process evaluates.
        verdict: The condition on their values, which it names `_asked_0`, `_asked_1`, ...
        expected: The constant of `assert ASKED == CONSTANT`; True for `assert ASKED`, False for `assert not ASKED`.
            The value is then compared as plain data, and no verdict is executed. None for other tests.
        modules: Modules of the standard library that the verdict uses.
    """

    source: str
    asked: tuple[str, ...]
    verdict: str
    expected: Expected | None
    modules: tuple[str, ...]


def equality_test(asked: str, wanted: object) -> SplitTest:
    """Return what `split_test` makes of `assert ASKED == WANTED`, for plain data and without parsing the source."""
    return SplitTest(
        source=f"assert {asked} == {wanted!r}",
        asked=(asked,),
        verdict=f"{ASKED}0 == {wanted!r}",
        expected=Expected(wanted),
        modules=(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertOutcome:
    """The result of one test; `error` is the solution's error, `got` its value where one constant was expected."""

    passed: bool
    error: str = ""
    got: str = ""


def split_test(source: str, defined: Collection[str]) -> SplitTest:
    """Split a test into its parts.

    Args:
        source: One assert statement.
        defined: Names that the solution and the problem's set-up define. Other names that are neither builtins nor
            modules of the standard library also count as names of the solution.

    Raises:
        TestProblem: The source is not one assert statement, does not use the solution, or uses it inside a loop.
    """
    statement = _parsed(source)
    taking = _Taking(defined)
    verdict = taking.truth_of(statement.test)
    if not taking.asked:
        raise TestProblem("the test asks the solution for nothing")
    return SplitTest(
        source=source,
        asked=tuple(taking.asked),
        verdict=ast.unparse(verdict),
        expected=_constant(verdict),
        modules=tuple(sorted(taking.modules)),
    )


def defined_names(source: str) -> frozenset[str]:
    """Names that a module's statements bind at its top level; none if it cannot be parsed."""
    try:
        body = _statements(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    return frozenset(name for statement in body for name in _bound(statement))


def names_in(expression: str) -> frozenset[str]:
    """Return the names in an expression that are neither builtins nor modules of the standard library."""
    found = {node.id for node in ast.walk(ast.parse(expression, mode="eval")) if isinstance(node, ast.Name)}
    return frozenset(found - _BUILTINS - sys.stdlib_module_names)


def _statements(source: str) -> list[ast.stmt]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # published solutions have escapes such as "\d" that Python warns of
        return ast.parse(source).body


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        return  # a module is not the solution's own
    else:
        names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
        yield from (name.id for name in names if isinstance(name.ctx, ast.Store))


def _parsed(source: str) -> ast.Assert:
    if len(source) > _MAX_CHARACTERS:
        raise TestProblem(f"the test has {len(source)} characters, but at most {_MAX_CHARACTERS} are supported")
    try:
        body = _statements(source.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TestProblem(f"the test is not valid Python: {error}") from error
    if len(body) != 1 or not isinstance(body[0], ast.Assert):
        raise TestProblem("the test is not one assert statement")
    return body[0]


class _Taking(ast.NodeTransformer):
    """Replaces each outermost call, attribute or item that begins with a name of the solution by a name `_asked_N`.

    A container that the test makes of such an expression is part of what is replaced.
    """

    def __init__(self, defined: Collection[str]) -> None:
        self._defined = defined
        self.asked: list[str] = []
        self.modules: set[str] = set()

    def truth_of(self, node: ast.expr) -> ast.expr:
        """Transform an expression of which only the truth value matters, such as the condition of a bare assert.

        The solution's process returns only the truth value of its part, because the value itself may not be plain
        data, such as a `re.Match`. For the same reason a comparison with None is evaluated there.
        """
        match node:
            case ast.UnaryOp(op=ast.Not()):
                node.operand = self.truth_of(node.operand)
            case ast.BoolOp():
                node.values = [self.truth_of(value) for value in node.values]
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]) if (
                self._is_asked(left)
            ):
                return self._take(node, ast.unparse(node))
            case ast.expr() if self._is_asked(node):
                return self._take(node, f"not not {ast.unparse(node)}")  # `bool` may be a name of the solution
            case _:
                visited = self.visit(node)
                assert isinstance(visited, ast.expr)
                return visited
        return node

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda, ast.NamedExpr)):
            if self._asks(node):
                raise TestProblem("the test asks the solution inside a loop, a lambda or an assignment")
            self._note_modules(node)
            return node
        if isinstance(node, ast.expr) and self._is_asked(node):
            return self._take(node, ast.unparse(node))
        if isinstance(node, ast.Name):
            self._note_modules(node)
        return self.generic_visit(node)

    def _take(self, node: ast.expr, source: str) -> ast.expr:
        self.asked.append(source)
        return ast.copy_location(ast.Name(id=f"{ASKED}{len(self.asked) - 1}", ctx=ast.Load()), node)

    def _is_asked(self, node: ast.expr) -> bool:
        """Whether the expression begins with a name of the solution, or makes a container of such an expression."""
        root = _root(node)
        if root is None or self._is_solutions(root.id):
            return root is not None
        match node:
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _CONTAINERS:
                return self._is_asked(argument)
        return False

    def _asks(self, node: ast.AST) -> bool:
        inside = [each for each in ast.walk(node) if isinstance(each, (ast.Name, ast.arg))]
        bound = {each.arg if isinstance(each, ast.arg) else each.id for each in inside if not _is_loaded(each)}
        return any(
            isinstance(each, ast.Name) and each.id not in bound and self._is_solutions(each.id) for each in inside
        )

    def _is_solutions(self, name: str) -> bool:
        return name in self._defined or not (name in _BUILTINS or name in sys.stdlib_module_names)

    def _note_modules(self, node: ast.AST) -> None:
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        self.modules |= (names & sys.stdlib_module_names) - _BUILTINS


def _is_loaded(node: ast.Name | ast.arg) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _root(node: ast.expr) -> ast.Name | None:
    """The name that a chain of calls, attributes and items begins with."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node if isinstance(node, ast.Name) else None


def _constant(verdict: ast.AST) -> Expected | None:
    match verdict:  # the solution's process returns the truth value
        case ast.Name(id=name) if name == f"{ASKED}0":
            return Expected(True)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=name)) if name == f"{ASKED}0":
            return Expected(False)
    if not isinstance(verdict, ast.Compare) or len(verdict.ops) != 1 or not isinstance(verdict.ops[0], ast.Eq):
        return None
    left, right = verdict.left, verdict.comparators[0]
    if not (isinstance(left, ast.Name) and left.id == f"{ASKED}0"):
        return None
    try:
        return Expected(ast.literal_eval(right))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
