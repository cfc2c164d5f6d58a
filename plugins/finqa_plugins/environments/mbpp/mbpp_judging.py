"""Whether a solution passes a problem's tests, and what its author is told."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass

from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.types import ExecutionLimits
from finqa_plugins.environments.mbpp.mbpp_problems import Problem
from finqa_plugins.environments.mbpp.showing import shown
from finqa_plugins.environments.mbpp.tests_in_parts import ASKED, SplitTest
from finqa_plugins.sandboxes._execution.evaluating import Evaluation, Raised, evaluate
from finqa_plugins.sandboxes._execution.python_values import equal

NO_CODE = "No code was found in the reply. Write the complete solution in one ```python block."
AGAIN = "Reply with the complete corrected code in one ```python block."
PASSED = "All tests passed."


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one test; `error` is the solution's, `got` what it gave where one constant was expected."""

    passed: bool
    error: str = ""
    got: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """On one solution.

    Attributes:
        outcomes: One for each test.
        error: Why no test could be carried out; empty when they were.
    """

    outcomes: tuple[Outcome, ...]
    error: str = ""

    @property
    def share(self) -> float:
        """Share of the tests that passed."""
        return sum(outcome.passed for outcome in self.outcomes) / len(self.outcomes)

    @property
    def passed(self) -> bool:
        """Every test passed."""
        return all(outcome.passed for outcome in self.outcomes)


async def judge(
    box: ExecutingSandbox, problem: Problem, code: str, limits: ExecutionLimits, shown_tests: int
) -> Verdict:
    """Executes the solution and compares what it gave outside of its process.

    Shown and hidden tests have a process each: what an error says of a shown test is told to the author, so hidden
    ones must not be there.

    Raises:
        SandboxError: The box failed.
    """
    open_ones, hidden = problem.tests[:shown_tests], problem.tests[shown_tests:]
    outcomes, error = await _outcomes(box, problem, open_ones, code, limits)
    if error:
        return Verdict(outcomes=(Outcome(passed=False, error=error),) * len(problem.tests), error=error)
    if hidden:
        more, error = await _outcomes(box, problem, hidden, code, limits)
        outcomes += more if not error else [Outcome(passed=False, error=error)] * len(hidden)
    return Verdict(outcomes=tuple(outcomes))


async def _outcomes(
    box: ExecutingSandbox, problem: Problem, tests: Sequence[SplitTest], code: str, limits: ExecutionLimits
) -> tuple[list[Outcome], str]:
    """One for each test; or why none could be carried out."""
    answers = await evaluate(
        box,
        code=code,
        setup=problem.setup,
        expressions=[expression for test in tests for expression in test.asked],
        limits=limits,
        labels={"problem": problem.id},
        go_on=True,
    )
    if answers.error and answers.failed_at is None:
        return [], answers.error
    outcomes, place = [], 0
    for test in tests:
        outcomes.append(await _outcome(box, problem, test, answers, place, limits))
        place += len(test.asked)
    return outcomes, ""


def feedback(problem: Problem, verdict: Verdict, shown_tests: int) -> str:
    """What the author of a wrong solution is told: shown tests in full, of hidden ones only that they failed and what
    kind of error was raised, since what an error says may be what the test asked.
    """
    if verdict.error:
        return f"Your code failed before any test could be carried out.\n\n{verdict.error}\n\n{AGAIN}"
    failed = [f"{sum(outcome.passed for outcome in verdict.outcomes)} of {len(verdict.outcomes)} tests passed."]
    for test, outcome in zip(problem.tests[:shown_tests], verdict.outcomes, strict=False):
        if not outcome.passed:
            told = outcome.error or (f"it gave {outcome.got}" if outcome.got else "it does not hold")
            failed.append(f"{test.source}\n{told}")
    hidden = [outcome for outcome in verdict.outcomes[shown_tests:] if not outcome.passed]
    if hidden:
        kinds = sorted({_kind(outcome.error) for outcome in hidden} - {""})
        count = "A hidden test" if len(hidden) == 1 else f"{len(hidden)} hidden tests"
        failed.append(f"{count} failed{': ' if kinds else ''}{', '.join(kinds)}.")
    return "\n\n".join([*failed, AGAIN])


async def _outcome(
    box: ExecutingSandbox, problem: Problem, test: SplitTest, answers: Evaluation, place: int, limits: ExecutionLimits
) -> Outcome:
    given = answers.values[place : place + len(test.asked)]
    if raised := next((value for value in given if isinstance(value, Raised)), None):
        return Outcome(passed=False, error=raised.error)
    if len(given) < len(test.asked):
        late = answers.failed_at is not None and answers.failed_at < place
        return Outcome(passed=False, error="not carried out" if late else answers.error)
    if test.expected is not None:
        passed = equal(given[0], test.expected.value)
        return Outcome(passed=passed, got="" if passed else shown(given[0]))
    return await _holds(box, problem, test, given, limits)


async def _holds(
    box: ExecutingSandbox, problem: Problem, test: SplitTest, given: Sequence[object], limits: ExecutionLimits
) -> Outcome:
    """A verdict that takes Python: evaluated where nothing of the solution is."""
    imports = "".join(f"import {module}\n" for module in test.modules)
    found = await evaluate(
        box,
        code="",
        setup=imports,
        expressions=[f"bool({test.verdict})"],
        names={f"{ASKED}{number}": value for number, value in enumerate(given)},
        limits=limits,
        labels={"problem": problem.id},
    )
    return Outcome(passed=found.values == (True,), error=found.error)


def _kind(error: str) -> str:
    """The type of a builtin exception; what a type of the solution's own is called is no matter of its author."""
    if not error:
        return ""
    name = error.splitlines()[-1].partition(":")[0].strip()
    known = getattr(builtins, name, None)
    return name if isinstance(known, type) and issubclass(known, BaseException) else "an exception"
