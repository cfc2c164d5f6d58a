"""Arguments and expected results of a task's tests: evaluated in a box, without anything that the policy wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.errors import DataError
from finqa_cli.types import ExecutionLimits
from finqa_plugins.environments.code_tasks.code_problems import CodeTask
from finqa_plugins.sandboxes._execution.evaluating import Evaluation, evaluate
from finqa_plugins.sandboxes._execution.python_values import decode, encode, equal

LIMITS = ExecutionLimits(cpu_s=20.0, wall_s=60.0, memory_bytes=2**30)

_SETUP = """
import collections, copy, fractions, functools, itertools, math, random, re, statistics, string
_kadane = lambda xs: max(itertools.accumulate(xs, lambda sum, x: max(x, sum + x)))
_cases = []
def _case(value):
    _cases.append(copy.deepcopy(value))
    return value
def _expected(place, make, many):
    if many and type(_cases[place]) is not tuple:
        raise TypeError("many_arguments, but the test gives no tuple of them")
    arguments = copy.deepcopy(_cases[place])
    found = make(copy.deepcopy(_cases[place]))
    return (found(*arguments) if many else found(arguments)) if callable(found) else found
random.seed({seed})
"""
"""What tests and references may use: the seed's harness has `random` and `_kadane`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Of one task. Never leaves this process but for the arguments.

    Attributes:
        arguments: One for each test.
        expected: Results, in the same order.
    """

    arguments: tuple[Any, ...]
    expected: tuple[Any, ...]


async def find_truth(box: ExecutingSandbox, task: CodeTask, seed: int) -> Truth:
    """Evaluates tests and reference in one process.

    Raises:
        SandboxError: The box failed.
        DataError: A test or the reference fails, or gives what cannot be compared.
    """
    count = len(task.tests)
    cases = [f"_case(\n{test}\n)" for test in task.tests]
    results = [
        f"_expected({place}, lambda xs: (\n{task.reference}\n), {task.many_arguments})" for place in range(count)
    ]
    found = await evaluate(
        box,
        code=_SETUP.format(seed=seed),
        setup=task.setup,
        expressions=[*cases, *results],
        limits=LIMITS,
        labels={"problem": task.id},
    )
    if not found.ok:
        raise DataError(f"Task {task.id!r}: {_problem(found, task)}", remedy="mend the task")
    truth = Truth(arguments=found.values[:count], expected=found.values[count:])
    _check(task, truth)
    return truth


def _check(task: CodeTask, truth: Truth) -> None:
    for test, expected in zip(task.tests, truth.expected, strict=True):
        if not equal(expected, decode(encode(expected)), task.tolerance):  # a NaN inside a list is itself
            raise DataError(
                f"Task {task.id!r}: test {test!r} expects NaN, which nothing equals.", remedy="leave the test out"
            )


def _problem(found: Evaluation, task: CodeTask) -> str:
    said = found.error.split("\n")[-1]
    if found.failed_at is None:
        return f"its setup fails: {said}"
    place = found.failed_at % len(task.tests)
    what = "test" if found.failed_at < len(task.tests) else "the reference on test"
    return f"{what} {task.tests[place]!r} fails: {said}"
