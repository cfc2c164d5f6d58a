"""The environment `code`: one function per episode, one reply.

Arguments and expected results of the tests are evaluated from the task's tests and reference, in a separate execution.
The policy's program then runs on the arguments alone, and its results are compared outside of the sandbox.

| part      | 1 when                                                                                    |
| --------- | ----------------------------------------------------------------------------------------- |
| `correct` | every test is passed                                                                      |
| `passed`  | (a share) of the tests, 0 after an error or a ban                                         |
| `banned`  | the code uses what the task bans; it is not executed then                                 |
| `error`   | there is no code, it is no Python, it raises, ends early, or takes too much of something  |

The total is -1 for `banned` or `error`, else `passed`, as in the original harness of the tasks.
"""

from __future__ import annotations

import asyncio
import builtins
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import structlog

from finqa_cli.contracts import EnvironmentContext, ExecutingSandbox
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.types import ExecutionLimits, Message, Observation, Prompt, Rewards, Task, Trajectory
from finqa_plugins.environments._task_files.task_rows import TaskData, embedded_data, group_by_split
from finqa_plugins.environments.code.code_environment import CodeEnvironment, extract_program
from finqa_plugins.environments.code.config import CodeConfig
from finqa_plugins.environments.code.function_tasks import FunctionTask, generated_tasks, load_tasks, seed_tasks
from finqa_plugins.sandboxes._execution.bans import UnreadableError, parse, violations
from finqa_plugins.sandboxes._execution.evaluating import Evaluation, Raised, evaluate
from finqa_plugins.sandboxes._execution.python_values import decode, encode, equal

BANNED = "Banned: "
ERROR = "Error: "
NO_CODE = "NoCode"
ENDED = "ProcessEnded"
OTHER = "Other"
TRUTH_LIMITS = ExecutionLimits(cpu_s=20.0, wall_s=60.0, memory_bytes=2**30)
_LONGEST = 300
_KIND = re.compile(re.escape(ERROR) + r"(\w+)")
_NAMED = {NO_CODE, ENDED} | {name for name, value in vars(builtins).items() if isinstance(value, type)}

log = structlog.get_logger(__name__)

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
"""Names that tests and references may use. `random` and `_kadane` are those of the tasks' original harness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTruth:
    """Arguments and expected results of a task's tests. Only arguments are sent to sandboxes with the policy's code.

    Attributes:
        arguments: One for each test.
        expected: Results, in the same order.
    """

    arguments: tuple[Any, ...]
    expected: tuple[Any, ...]


class FunctionEnvironment(CodeEnvironment[FunctionTask, Rewards]):
    """Tasks from files or embedded ones, with one reply per episode. The verdict on a reply is its rewards."""

    def __init__(self, config: CodeConfig, context: EnvironmentContext) -> None:
        """Read the tasks at once, so that a bad file fails before anything is started.

        Raises:
            DataError: The data at `context.data` is missing or malformed.
            ConfigError: A reward is configured: rewards compare answers, and code is not an answer.
        """
        if context.reward is not None:
            raise ConfigError(
                "Environment 'code' grades with its tests; the other rewards compare answers.",
                remedy="leave out --reward",
            )
        if context.data is not None:
            info, tasks = load_tasks(context.data)
            # If a user's tasks have no held-out splits, embedded tasks are used for evaluation.
            beside = _held_out_beside(tasks)
            if beside:
                splits = ", ".join(dict.fromkeys(task.split for task in beside))
                # Log: Own problems of `code` or `mbpp` have no split for the evaluation.
                log.warning(
                    "the data has no held-out tasks: embedded ones are used instead", data=info.name, splits=splits
                )
            data = TaskData(info=info, rows=_by_split((*tasks, *beside)))
        else:
            tasks = generated_tasks(config.tasks, config.seed) if config.family == "functions" else seed_tasks()
            data = embedded_data(_by_split(tasks), repr(tasks))
        super().__init__(data, attempts=1, fresh_sandboxes=config.fresh_sandboxes)
        self._config = config
        self._truths: dict[str, FunctionTruth] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def task(self, problem: FunctionTask, split: str) -> Task:
        """Return the task of a problem."""
        return Task(id=problem.id, prompt=problem.prompt, split=split, cluster=problem.id, kind=problem.kind)

    def prompt(self, problem: FunctionTask) -> Prompt:
        """Return the task's own text and nothing else, so that a base model can continue it."""
        return Prompt(messages=(Message(role="user", content=problem.prompt),), tools=())

    async def prepare(self, problem: FunctionTask, sandbox: ExecutingSandbox) -> None:
        """Find the truth of a task once; after a failure the next episode tries again."""
        async with self._locks.setdefault(problem.id, asyncio.Lock()):
            if problem.id not in self._truths:
                self._truths[problem.id] = await find_truth(sandbox, problem, self._config.seed)

    async def judge(self, problem: FunctionTask, text: str, sandbox: ExecutingSandbox) -> Rewards:
        """Execute the program of a reply on the arguments of the tests and compare its results.

        Neither tests nor expected results are in the sandbox.
        """
        code = extract_program(text, problem.prompt, problem.func_name)
        if not code.strip():
            return _error(f"{NO_CODE}: the reply has none")
        try:
            parse(code)
            if used := violations(code, problem.banned):
                return _rewards(-1.0, banned=1.0, explanation=f"{BANNED}{', '.join(used)}.")
        except UnreadableError as error:
            return _error(str(error))
        truth = self._truths[problem.id]
        names = {f"case_{place}_": arguments for place, arguments in enumerate(truth.arguments)}
        star = "*" if problem.many_arguments else ""
        found = await evaluate(
            sandbox,
            code=code,
            expressions=[f"{problem.func_name}({star}{name})" for name in names],
            names=names,
            limits=self._config.limits,
            labels={"problem": problem.id},
            keep_going=self._config.raising == "failed",
        )
        if not found.ok:
            reason = found.error.split("\n")[-1]
            kind, colon, _ = reason.partition(": ")
            named = reason if (kind if colon else reason).isidentifier() else f"{ENDED}: {reason}"
            return _error(f"{named} (test {found.failed_at + 1})" if found.failed_at is not None else named)
        pairs = zip(found.values, truth.expected, strict=True)
        passed = [not isinstance(value, Raised) and equal(value, right, problem.tolerance) for value, right in pairs]
        share = sum(passed) / len(passed)
        return _rewards(share, passed=share, explanation=f"{sum(passed)} of {len(passed)} tests passed.")

    def feedback(self, problem: FunctionTask, verdict: Rewards) -> Observation:
        """Return that the code was received: the only attempt gets no feedback."""
        return Observation(text="Code received.", done=True)

    def rewards(self, task: Task, problem: FunctionTask, replies: Sequence[str], verdict: Rewards | None) -> Rewards:
        """Return the verdict on the reply; an episode without a reply is judged as an empty one."""
        return verdict or _error(f"{NO_CODE}: the reply has none")

    def right_answer(self, task: Task) -> str:
        """Return the program of the data; empty when it has none."""
        return self._row(task).solution.rstrip()

    def solution(self, problem: FunctionTask, attempt: int) -> str:
        """Return the solution of a task, or a careless one for the share of tasks that the options name."""
        rng = random.Random(f"careless:{self._config.seed}:{problem.id}")
        careless = bool(problem.careless) and rng.random() < self._config.careless
        return (problem.careless if careless and problem.solution else problem.solution).rstrip()

    def measure(self, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
        """Compute measures over the episodes that have a verdict; empty if there are none.

        `test_pass_rate` is the mean share of tests passed, with 0 for errors and bans. `error_kinds` counts exceptions
        by type; types that are not builtin count as `Other`.
        """
        graded = [each.rewards for each in trajectories if each.rewards is not None]
        if not graded:
            return {}
        kinds = Counter(_error_kind(rewards) for rewards in graded if rewards.components.get("error"))
        means = {"test_pass_rate": "passed", "ban_rate": "banned", "error_rate": "error"}
        return {
            **{name: fmean(each.components.get(part, 0.0) for each in graded) for name, part in means.items()},
            "error_kinds": dict(sorted(kinds.items())),
        }


def _by_split(tasks: Sequence[FunctionTask]) -> Mapping[str, tuple[FunctionTask, ...]]:
    return group_by_split((task.split, task) for task in tasks)


def _held_out_beside(own: Sequence[FunctionTask]) -> tuple[FunctionTask, ...]:
    taken = {"train", *(task.split for task in own)}
    names = {task.id for task in own}
    return tuple(task for task in seed_tasks() if task.split not in taken and task.id not in names)


async def find_truth(sandbox: ExecutingSandbox, task: FunctionTask, seed: int) -> FunctionTruth:
    """Evaluate tests and reference in one execution, without any code of the policy.

    Raises:
        SandboxError: The sandbox failed.
        DataError: A test or the reference fails, or gives a value that cannot be compared.
    """
    count = len(task.tests)
    cases = [f"_case(\n{test}\n)" for test in task.tests]
    results = [
        f"_expected({place}, lambda xs: (\n{task.reference}\n), {task.many_arguments})" for place in range(count)
    ]
    found = await evaluate(
        sandbox,
        code=_SETUP.format(seed=seed),
        setup=task.setup,
        expressions=[*cases, *results],
        limits=TRUTH_LIMITS,
        labels={"problem": task.id},
    )
    if not found.ok:
        raise DataError(f"Task {task.id!r}: {_problem(found, task)}", remedy="correct the task")
    truth = FunctionTruth(arguments=found.values[:count], expected=found.values[count:])
    _check(task, truth)
    return truth


def _check(task: FunctionTask, truth: FunctionTruth) -> None:
    for test, expected in zip(task.tests, truth.expected, strict=True):
        if not equal(
            expected, decode(encode(expected)), task.tolerance
        ):  # copied, because the same NaN object in two lists would be equal
            raise DataError(
                f"Task {task.id!r}: test {test!r} expects NaN, which nothing equals.", remedy="leave the test out"
            )


def _problem(found: Evaluation, task: FunctionTask) -> str:
    said = found.error.split("\n")[-1]
    if found.failed_at is None:
        return f"its setup fails: {said}"
    place = found.failed_at % len(task.tests)
    what = "test" if found.failed_at < len(task.tests) else "the reference on test"
    return f"{what} {task.tests[place]!r} fails: {said}"


def _error(reason: str) -> Rewards:
    return _rewards(-1.0, error=1.0, explanation=f"{ERROR}{reason}")


def _rewards(
    total: float, *, passed: float = 0.0, banned: float = 0.0, error: float = 0.0, explanation: str
) -> Rewards:
    components = {"correct": float(passed == 1.0), "passed": passed, "banned": banned, "error": error}
    line = "".join(character if character.isprintable() else "?" for character in explanation)
    return Rewards(total=total, components=components, explanation=line[:_LONGEST])


def _error_kind(rewards: Rewards) -> str:
    found = _KIND.match(rewards.explanation)
    return found[1] if found and found[1] in _NAMED else OTHER
