"""The environment `mbpp`: several attempts at a problem, with the failed tests as feedback in between."""

from __future__ import annotations

import ast
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from finqa_cli.contracts import EnvironmentContext, ExecutingSandbox, RewardRequest
from finqa_cli.errors import ConfigError
from finqa_cli.types import Message, Observation, Prompt, Rewards, Task, Trajectory
from finqa_plugins.environments.code.assert_parts import ASKED, AssertOutcome, SplitTest
from finqa_plugins.environments.code.code_environment import CodeEnvironment, extract_code
from finqa_plugins.environments.code.code_problem import CodeProblem
from finqa_plugins.environments.code.config import MbppConfig
from finqa_plugins.environments.code.mbpp_problems import embedded_problems, function_problems, load_problems
from finqa_plugins.sandboxes._execution.evaluating import Evaluation, Raised, evaluate
from finqa_plugins.sandboxes._execution.python_values import equal

SYSTEM = "You are an expert Python programmer. Solve the problem with the standard library only."
NO_CODE = "No code was found in the reply. Write the complete solution in one ```python block."
AGAIN = "Reply with the complete corrected code in one ```python block."
PASSED = "All tests passed."
_LONGEST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class MbppVerdict:
    """The verdict on one solution.

    Attributes:
        outcomes: One for each test; none if the reply has no code.
        error: Why no test could be executed; empty if tests were executed.
    """

    outcomes: tuple[AssertOutcome, ...]
    error: str = ""

    @property
    def share(self) -> float:
        """The share of the tests that passed."""
        return sum(outcome.passed for outcome in self.outcomes) / len(self.outcomes) if self.outcomes else 0.0

    @property
    def passed(self) -> bool:
        """Whether every test passed."""
        return bool(self.outcomes) and all(outcome.passed for outcome in self.outcomes)


class MbppEnvironment(CodeEnvironment[CodeProblem, MbppVerdict]):
    """Problems of MBPP's files, embedded ones or generated functions."""

    def __init__(self, config: MbppConfig, context: EnvironmentContext) -> None:
        """Read the problems at once, so that a bad file fails before anything is started.

        Raises:
            DataError: The data at `context.data` is missing or malformed.
            ConfigError: Both data and embedded functions are configured.
        """
        data = context.data
        if config.family == "functions":
            if data is not None:
                raise ConfigError(
                    "environment.options.family = functions are embedded problems; "
                    f"the ones asked are those of {data}.",
                    remedy="leave out --data, or environment.options.family",
                )
            problems = function_problems(config.tasks, config.seed)
        else:
            problems = embedded_problems() if data is None else load_problems(data)
        rows = {split: each[: config.dataset_limit or None] for split, each in problems.rows.items()}
        self._config = config
        self._reward = context.reward
        super().__init__(
            replace(problems, rows=rows), attempts=config.max_attempts, fresh_sandboxes=config.fresh_sandboxes
        )

    def task(self, problem: CodeProblem, split: str) -> Task:
        """Return the task of a problem, with the shown tests: some problems of MBPP differ only in their tests."""
        prompt = problem.opening(self._config.shown_tests)
        return Task(id=problem.id, prompt=prompt, split=split, cluster=problem.id)

    def prompt(self, problem: CodeProblem) -> Prompt:
        """Return the system message and the problem with the tests that are shown."""
        question = Message(role="user", content=problem.opening(self._config.shown_tests))
        return Prompt(messages=(Message(role="system", content=SYSTEM), question), tools=())

    async def judge(self, problem: CodeProblem, text: str, sandbox: ExecutingSandbox) -> MbppVerdict:
        """Execute the solution in a reply and compare its values outside of its process.

        Shown and hidden tests run in separate processes: the author reads the errors of shown tests, which could
        otherwise reveal hidden ones.
        """
        code, shown = extract_code(text, problem.asked_names), self._shown(problem)
        if not code.strip():
            return MbppVerdict(outcomes=())
        if problem.whole:
            if error := _syntax_error(code):  # the author's own text, so that it may be shown
                return MbppVerdict(
                    outcomes=(AssertOutcome(passed=False, error=error),) * len(problem.whole), error=error
                )
            limits, labels = self._config.limits, {"problem": problem.id}
            carried = [await each.carry_out(code, sandbox, limits=limits, labels=labels) for each in problem.whole]
            return MbppVerdict(outcomes=tuple(carried))
        outcomes, error = await self._outcomes(problem, problem.tests[:shown], code, sandbox)
        if error:
            failed = AssertOutcome(passed=False, error=error)
            return MbppVerdict(outcomes=(failed,) * len(problem.tests), error=error)
        if hidden := problem.tests[shown:]:
            more, error = await self._outcomes(problem, hidden, code, sandbox)
            outcomes += more if not error else [AssertOutcome(passed=False, error=error)] * len(hidden)
        return MbppVerdict(outcomes=tuple(outcomes))

    def feedback(self, problem: CodeProblem, verdict: MbppVerdict) -> Observation:
        """Return which tests failed, without the content of hidden tests."""
        if verdict.passed:
            return Observation(text=PASSED, done=True)
        shown = self._shown(problem)
        text = describe_failures(problem, verdict, shown) if verdict.outcomes else NO_CODE
        return Observation(text=text, is_error=True)

    def _shown(self, problem: CodeProblem) -> int:
        return min(self._config.shown_tests, problem.public)

    def rewards(self, task: Task, problem: CodeProblem, replies: Sequence[str], verdict: MbppVerdict | None) -> Rewards:
        """Return 1 when the last attempt passed every test, else 0.

        Parts are `correct`, `passed` (share of the tests) and `attempts`. A configured reward judges the last reply.
        """
        solved = verdict is not None and verdict.passed
        own = Rewards(
            total=float(solved),
            components={
                "correct": float(solved),
                "passed": verdict.share if verdict else 0.0,
                "attempts": float(len(replies)),
            },
            explanation=_explanation(verdict, len(replies)),
        )
        if self._reward is None:
            return own
        request = RewardRequest(
            task=task,
            solution=replies[-1] if replies else "",
            truth=problem.reference,
            data_source="mbpp",
            extra_info={"tests": [test.source for test in problem.tests], **own.components},
        )
        return self._reward.score_beside(request, own)

    def right_answer(self, task: Task) -> str:
        """Return the reference program; empty when the data has none."""
        return self._row(task).reference.rstrip()

    def solution(self, problem: CodeProblem, attempt: int) -> str:
        """Return the reference, or a careless solution for the shares of tasks that the options name."""
        if not problem.reference:
            return ""
        share = self._config.careless if attempt == 1 else self._config.careless_again
        careless = random.Random(f"careless:{self._config.seed}:{problem.id}:{attempt}").random() < share
        return f"```python\n{problem.careless if careless else problem.reference}\n```"

    def measure(self, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
        """Compute measures of the graded episodes; empty if there are none.

        | figure                 | meaning                                                                            |
        | ---------------------- | ---------------------------------------------------------------------------------- |
        | `pass_at_1_by_attempt` | share solved by attempt 1, by attempt 2 at the latest, ...: one sampled episode    |
        |                        | each                                                                               |
        | `repair_rate`          | share solved later of those that failed at first; only if any failed               |
        | `attempts_mean`        | mean number of attempts                                                            |
        """
        graded = [(each, each.rewards) for each in trajectories if each.rewards is not None]
        if not graded:
            return {}
        solved_at = [
            len(each.turns) if rewards.components.get("correct", 0.0) > 0 else self.attempts + 1
            for each, rewards in graded
        ]
        failed_first = [at for at in solved_at if at > 1]
        figures: dict[str, Any] = {
            "pass_at_1_by_attempt": {
                str(attempt): sum(at <= attempt for at in solved_at) / len(graded)
                for attempt in range(1, self.attempts + 1)
            },
            "attempts_mean": sum(len(each.turns) for each, _ in graded) / len(graded),
        }
        if failed_first and self.attempts > 1:
            figures["repair_rate"] = sum(at <= self.attempts for at in failed_first) / len(failed_first)
        return figures

    async def _outcomes(
        self, problem: CodeProblem, tests: Sequence[SplitTest], code: str, sandbox: ExecutingSandbox
    ) -> tuple[list[AssertOutcome], str]:
        """Return one outcome for each test, or the reason why no test could be executed."""
        answers = await evaluate(
            sandbox,
            code=f"{problem.helpers}\n{code}" if problem.helpers else code,
            setup=problem.setup,
            expressions=[expression for test in tests for expression in test.asked],
            limits=self._config.limits,
            labels={"problem": problem.id},
            keep_going=True,
        )
        if answers.error and answers.failed_at is None:
            return [], answers.error
        outcomes, place = [], 0
        for test in tests:
            outcome = _compared(test, answers, place)
            if outcome is None:
                outcome = await self._holds(problem, test, answers.values[place : place + len(test.asked)], sandbox)
            outcomes.append(outcome)
            place += len(test.asked)
        return outcomes, ""

    async def _holds(
        self, problem: CodeProblem, test: SplitTest, given: Sequence[object], sandbox: ExecutingSandbox
    ) -> AssertOutcome:
        """Evaluate a verdict that needs Python, in a process without the solution."""
        found = await evaluate(
            sandbox,
            code="",
            setup="".join(f"import {module}\n" for module in test.modules),
            expressions=[f"bool({test.verdict})"],
            names={f"{ASKED}{number}": value for number, value in enumerate(given)},
            limits=self._config.limits,
            labels={"problem": problem.id},
        )
        return AssertOutcome(passed=found.values == (True,), error=found.error)


def _syntax_error(code: str) -> str:
    """Return why a solution is not Python; empty if it is, or if only carrying it out can tell."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except SyntaxError as error:
        return f"SyntaxError: {error.msg} (line {error.lineno})" if error.lineno else ""
    except (ValueError, RecursionError, MemoryError):
        return ""
    return ""


def _explanation(verdict: MbppVerdict | None, attempts: int) -> str:
    if verdict is None:
        return "Nothing was replied."
    if not verdict.outcomes:
        return "No code was found in the last reply."
    if verdict.passed:
        return f"All tests passed at attempt {attempts}."
    failed = sum(not outcome.passed for outcome in verdict.outcomes)
    return " ".join([f"{failed} of {len(verdict.outcomes)} tests failed.", *verdict.error.splitlines()[-1:]])


def describe_failures(problem: CodeProblem, verdict: MbppVerdict, shown_tests: int) -> str:
    """Return the feedback on a wrong solution.

    Shown tests are quoted in full. Of hidden tests only the number that failed is reported: a program
    could send an argument of a hidden test to its author in the type or the text of an exception that it chooses.
    """
    if verdict.error:
        return f"Your code failed before any test could be carried out.\n\n{verdict.error}\n\n{AGAIN}"
    failed = [f"{sum(outcome.passed for outcome in verdict.outcomes)} of {len(verdict.outcomes)} tests passed."]
    sources = [test.source for test in problem.tests or problem.whole]
    for source, outcome in zip(sources[:shown_tests], verdict.outcomes, strict=False):
        if not outcome.passed:
            reason = outcome.error or (f"it gave {outcome.got}" if outcome.got else "it does not hold")
            failed.append(f"{source}\n{reason}")
    hidden = [outcome for outcome in verdict.outcomes[shown_tests:] if not outcome.passed]
    if hidden:
        failed.append(f"{'A hidden test' if len(hidden) == 1 else f'{len(hidden)} hidden tests'} failed.")
    return "\n\n".join([*failed, AGAIN])


def _compared(test: SplitTest, answers: Evaluation, place: int) -> AssertOutcome | None:
    """Return the outcome of a test whose answers begin at a place; None if its verdict needs Python."""
    given = answers.values[place : place + len(test.asked)]
    if raised := next((value for value in given if isinstance(value, Raised)), None):
        return AssertOutcome(passed=False, error=raised.error)
    if len(given) < len(test.asked):
        late = answers.failed_at is not None and answers.failed_at < place
        return AssertOutcome(passed=False, error="not carried out" if late else answers.error)
    if test.expected is None:
        return None
    passed = equal(given[0], test.expected.value)
    return AssertOutcome(passed=passed, got="" if passed else shown(given[0]))


def shown(value: object) -> str:
    """Return the `repr` of a value, with sets sorted so that it is the same in every process, cut to `_LONGEST`."""
    text = _shown(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _shown(value: object) -> str:
    if type(value) is list:
        return f"[{', '.join(map(_shown, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_shown, value))}{',' if len(value) == 1 else ''})"
    if type(value) is dict:
        return f"{{{', '.join(f'{_shown(key)}: {_shown(item)}' for key, item in value.items())}}}"
    if isinstance(value, set | frozenset) and value:
        return f"{{{', '.join(sorted(map(_shown, value)))}}}"
    try:
        return repr(value)
    except (
        ArithmeticError,
        ValueError,
    ):  # an integer with more digits than Python converts, a Counter of signalling NaNs
        return f"a value of type {type(value).__name__}"
