"""Problems of HumanEval (Chen et al., arXiv 2107.03374), and checks that need the whole solution.

| field                | meaning                                                          |
| -------------------- | ---------------------------------------------------------------- |
| `task_id`            | text, such as `HumanEval/0`                                      |
| `prompt`             | the function's head with its docstring, imports and helpers      |
| `entry_point`        | name of the function                                             |
| `canonical_solution` | the rest of the function; may be missing                         |
| `test`               | defines `check(candidate)`                                       |

Most checks are a list of asserts, each of which becomes a test. The others have loops or variables. For these, a
process without the solution records the arguments with which the check calls `candidate`. The solution's process then
evaluates these calls, and the check runs again on their results in a process without the solution.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.types import ExecutionLimits
from finqa_plugins.environments._task_files.task_rows import FieldError, required_text
from finqa_plugins.environments.code.assert_parts import AssertOutcome, SplitTest, TestProblem, split_test
from finqa_plugins.environments.code.code_problem import CodeProblem
from finqa_plugins.sandboxes._execution.evaluating import Raised, evaluate

MOST_ROUNDS = 20
"""Largest number of rounds, if the calls of a check depend on results of earlier calls."""

_REPLAY = """
import copy as _copy
import random as _random

class _Unanswered(BaseException):
    pass

class _Raised(Exception):
    pass

def _note(check, solve):
    calls = []
    def candidate(*args, **kwargs):
        calls.append([_copy.deepcopy(list(args)), _copy.deepcopy(kwargs)])
        return solve(*args, **kwargs)
    _random.seed(0)
    check(candidate)
    return calls

def _replay(check, calls, answers):
    done = []
    def candidate(*args, **kwargs):
        asked = [list(args), kwargs]
        at = len(done)
        done.append(_copy.deepcopy(asked))
        if at >= len(calls) or (calls[at] != asked and repr(calls[at]) != repr(asked)):  # NaN equals nothing
            raise _Unanswered
        kind, answer = answers[at]
        if kind == "raised":
            raise _Raised(answer)
        return answer
    _random.seed(0)
    try:
        check(candidate)
    except _Unanswered:
        return ["ask", len(done) - 1, done[-1]]
    except AssertionError:
        return ["failed", ""]
    except _Raised as error:
        return ["failed", str(error)]
    except Exception as error:
        return ["failed", f"{type(error).__name__}: {error}"]
    return ["passed", ""]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeCheck:
    """A check that is executed as a whole, on recorded results of the solution.

    Attributes:
        function: Name of the function that it calls.
        source: Code that defines `check`.
        helpers: Imports and functions that the problem gives.
        reference: A correct solution, with which the calls are recorded; empty if the data has none.
    """

    function: str
    source: str
    helpers: str
    reference: str

    async def carry_out(
        self, code: str, sandbox: ExecutingSandbox, *, limits: ExecutionLimits, labels: Mapping[str, str]
    ) -> AssertOutcome:
        """Carry out the check for a solution.

        Raises:
            SandboxError: The sandbox failed.
        """
        trusted = f"{self.helpers}\n{self.reference}\n{self.source}\n{_REPLAY}"
        calls: list[object] = []
        if self.reference:
            noted = await evaluate(
                sandbox,
                code="",
                setup=trusted,
                expressions=[f"_note(check, {self.function})"],
                limits=limits,
                labels=labels,
            )
            calls = list(noted.values[0]) if noted.ok and isinstance(noted.values[0], list) else []
        answers: list[tuple[str, object]] = []
        for _ in range(MOST_ROUNDS):
            asked = calls[len(answers) :]
            if asked:
                found = await evaluate(
                    sandbox,
                    code=f"{self.helpers}\n{code}",
                    expressions=[f"{self.function}(*_call_{at}[0], **_call_{at}[1])" for at in range(len(asked))],
                    names={f"_call_{at}": call for at, call in enumerate(asked)},
                    limits=limits,
                    labels=labels,
                    keep_going=True,
                )
                if len(found.values) < len(asked):
                    return AssertOutcome(passed=False, error=found.error)
                answers += [
                    ("raised", one.error) if isinstance(one, Raised) else ("value", one) for one in found.values
                ]
            judged = await evaluate(
                sandbox,
                code="",
                setup=trusted,
                expressions=["_replay(check, _calls, _answers)"],
                names={"_calls": calls, "_answers": [list(answer) for answer in answers]},
                limits=limits,
                labels=labels,
            )
            match judged.values:
                case (["passed" | "failed" as verdict, str() as error],):
                    return AssertOutcome(passed=verdict == "passed", error=error)
                case (["ask", int() as place, call],):
                    calls, answers = [*calls[:place], call], answers[:place]
                case _:
                    return AssertOutcome(passed=False, error=judged.error or "The check ended without a verdict.")
        return AssertOutcome(passed=False, error=f"The check makes new calls more than {MOST_ROUNDS} times.")


def read_humaneval(row: Mapping[str, object]) -> CodeProblem:
    """Read the problem in a row.

    Raises:
        RowError: A field is missing or malformed.
    """
    identity, prompt, function, source = (
        required_text(row, name) for name in ("task_id", "prompt", "entry_point", "test")
    )
    if not function.isidentifier():
        raise FieldError("entry_point", "must be the name of a function")
    solution = row.get("canonical_solution")
    if solution is not None and not isinstance(solution, str):
        raise FieldError("canonical_solution", "must be a text")
    reference = f"{prompt}{solution}" if solution else ""
    helpers = _helpers(prompt, function)
    tests = _asserts(_check_of(source), function)
    return CodeProblem(
        id=identity,
        text=f"Complete this function:\n```python\n{prompt.strip()}\n```\n",
        tests=tests,
        whole=() if tests else (WholeCheck(function=function, source=source, helpers=helpers, reference=reference),),
        reference=reference,
        helpers=helpers,
        public=0,
    )


def _parse(name: str, source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FieldError(name, f"is not valid Python: {error}") from error


def _helpers(prompt: str, function: str) -> str:
    """Return the imports and functions that come with a prompt, without the function to write."""
    body = _parse("prompt", f"{prompt}\n    pass\n").body
    if not any(isinstance(each, ast.FunctionDef) and each.name == function for each in body):
        raise FieldError("prompt", f"does not begin the function {function}")
    kept = [each for each in body if not (isinstance(each, ast.FunctionDef) and each.name == function)]
    return ast.unparse(ast.Module(body=kept, type_ignores=[]))


def _check_of(source: str) -> ast.FunctionDef:
    for each in _parse("test", source).body:
        if isinstance(each, ast.FunctionDef) and each.name == "check" and len(each.args.args) == 1:
            return each
    raise FieldError("test", "defines no check(candidate)")


def _asserts(check: ast.FunctionDef, function: str) -> tuple[SplitTest, ...]:
    """Return the asserts of a check as tests; none if it has other statements, or an assert without the function."""
    candidate = check.args.args[0].arg
    tests = []
    for statement in check.body:
        if isinstance(statement, ast.Pass) or (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        ):
            continue
        if not isinstance(statement, ast.Assert):
            return ()
        if isinstance(statement.test, ast.Constant) and statement.test.value:
            continue  # `assert True` tests nothing
        renamed = _Renaming(candidate, function).visit(ast.Assert(test=statement.test))
        try:
            tests.append(split_test(ast.unparse(ast.fix_missing_locations(renamed)), {function}))
        except TestProblem:
            return ()
    return tuple(tests)


class _Renaming(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(id=self._new, ctx=node.ctx), node) if node.id == self._old else node
