"""The code environments: a function is asked for, what comes is executed in a sandbox and judged outside of it.

`code` and `mbpp` are this environment with different task sources and numbers of attempts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from finqa_cli.contracts import Environment, EnvironmentContext, ExecutingSandbox, Sandbox, TextSession
from finqa_cli.errors import DataError, EnvironmentFault
from finqa_cli.types import (
    AssistantTurn,
    DataInfo,
    ExecutionSpec,
    Message,
    Observation,
    Prompt,
    Rewards,
    Task,
    Trajectory,
)
from finqa_cli.types.splits import SPLIT_NAMES
from finqa_plugins.environments.code.config import CodeConfig, MbppConfig
from finqa_plugins.environments.code.function_judging import FunctionSource
from finqa_plugins.environments.code.mbpp_judging import MbppSource
from finqa_plugins.environments.code.task_source import TaskSource


class CodeEnvironment(Environment):
    """Tasks of one source; the class of the options says which. It demonstrates solutions and has own figures."""

    def __init__(self, config: CodeConfig | MbppConfig, context: EnvironmentContext) -> None:
        """Read the tasks at once, so that a bad file fails before anything is started.

        Raises:
            DataError: The data at `context.data` is missing or malformed.
            ConfigError: Options, data or reward do not fit together.
        """
        self._fresh = config.fresh_sandboxes
        self._source = _make_source(config, context)
        by_split = self._source.by_split
        problems = [each for split in by_split.values() for each in split]
        self._problems = {each.id: each for each in reversed(problems)}
        self._tasks = {
            split: tuple(self._source.task(each, split) for each in each_split)
            for split, each_split in by_split.items()
        }

    def sandbox_spec(self) -> ExecutionSpec:
        """Return a sandbox that executes code."""
        return ExecutionSpec(fresh=self._fresh)

    def data(self) -> DataInfo:
        """Return the name of the file or folder, or `embedded`."""
        return self._source.info

    def splits(self) -> Sequence[str]:
        """Return the splits that have tasks."""
        return tuple(self._tasks)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return all tasks of a split; `validation` and the like are names of `dev`.

        Raises:
            DataError: There is no such split.
        """
        name = SPLIT_NAMES.get(split, split)
        if name not in self._tasks:
            raise DataError(
                f"{self._source.info.name} has no tasks of split {split!r}; it has: {', '.join(self._tasks)}.",
                remedy=f"name another split, or give --data tasks of split {split!r}",
            )
        return self._tasks[name]

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> CodeSession:
        """Start an episode of exactly this task.

        Raises:
            SandboxError: The sandbox failed.
            EnvironmentFault: The task is not of this data, or the sandbox does not execute code.
            DataError: The task's own tests or reference fail.
        """
        problem = self._problem(task)
        if not isinstance(sandbox, ExecutingSandbox):
            raise EnvironmentFault(
                "The sandbox of the session does not execute code: it is no finqa_cli.contracts.ExecutingSandbox."
            )
        await self._source.prepare(problem, sandbox)
        return CodeSession(self._source, problem, task, sandbox)

    def opening(self, task: Task) -> Prompt:
        """Return the prompt of a task.

        Raises:
            EnvironmentFault: The task is not of this data.
        """
        return self._source.opening(self._problem(task))

    def demonstrate(self, messages: Sequence[Message]) -> AssistantTurn | None:
        """Return a solution for the next attempt; a careless one for the share of tasks that the options name."""
        if not messages or messages[-1].role != "user":
            return None
        attempt = 1 + sum(message.role == "assistant" for message in messages)
        asked = next(message.content for message in messages if message.role == "user")
        problem = self._by_prompt.get(asked)
        if problem is None or attempt > self._source.attempts:
            return None
        text = self._source.solution(problem, attempt)
        return AssistantTurn(text=text) if text else None

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
        """Compute the figures of the source; none without a graded episode."""
        return self._source.measure(trajectories)

    def _problem(self, task: Task) -> Any:
        problem = self._problems.get(task.id)
        if problem is None:
            raise EnvironmentFault(f"{self._source.info.name} has no task {task.id!r}.")
        return problem

    @cached_property
    def _by_prompt(self) -> dict[str, Any]:
        return {self._source.opening(each).messages[-1].content: each for each in self._problems.values()}


def _make_source(config: CodeConfig | MbppConfig, context: EnvironmentContext) -> TaskSource[Any, Any]:
    return MbppSource(config, context) if isinstance(config, MbppConfig) else FunctionSource(config, context)


class CodeSession(TextSession):
    """A problem, and attempts at it until one passes every test or none is left."""

    def __init__(self, source: TaskSource[Any, Any], problem: Any, task: Task, sandbox: ExecutingSandbox) -> None:
        self._source = source
        self._problem = problem
        self._task = task
        self._sandbox = sandbox
        self._replies: list[str] = []
        self._verdict: Any = None
        self._done = False

    def prompt(self) -> Prompt:
        """Return the prompt of the problem."""
        return self._source.opening(self._problem)

    async def reply(self, text: str) -> Observation:
        """Judge one attempt and return what its author reads.

        Raises:
            SandboxError: The sandbox failed; the attempt does not count.
        """
        if self._done:
            return Observation(text="Error: the episode is over.", done=True, is_error=True)
        self._verdict = await self._source.judge(self._problem, text, self._sandbox)
        self._replies.append(text)
        observation = self._source.feedback(self._problem, self._verdict)
        self._done = observation.done or len(self._replies) >= self._source.attempts
        return replace(observation, done=self._done)

    async def grade(self) -> Rewards:
        """Return the verdict on the last attempt, or on no attempt.

        Raises:
            EnvironmentFault: The configured reward failed.
        """
        return self._source.rewards(self._task, self._problem, self._replies, self._verdict)
