"""The `mbpp` environment: problems with tests, several attempts at each, feedback in between."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Environment, EnvironmentContext, ExecutingSandbox, Sandbox
from finqa_cli.errors import ConfigError, DataError, EnvironmentFault
from finqa_cli.types import AssistantTurn, DataInfo, ExecutionSpec, Message, Prompt, Task, Trajectory
from finqa_cli.types.splits import SPLIT_NAMES
from finqa_plugins.environments.mbpp.config import MbppConfig
from finqa_plugins.environments.mbpp.mbpp_files import Problems, embedded, load
from finqa_plugins.environments.mbpp.mbpp_functions import function_problems
from finqa_plugins.environments.mbpp.mbpp_measures import measures
from finqa_plugins.environments.mbpp.mbpp_problems import Problem
from finqa_plugins.environments.mbpp.mbpp_session import MbppSession, opening


class MbppEnvironment(Environment):
    """See `finqa_cli.contracts.Environment`. It demonstrates the reference solutions."""

    def __init__(self, config: MbppConfig | None, context: EnvironmentContext) -> None:
        """Reads the data at once, so that a bad file fails before anything is started.

        Raises:
            DataError: The data at `context.data` is missing or malformed.
            ConfigError: Beside data, embedded functions are wanted.
        """
        self._config = config or MbppConfig()
        self._reward = context.reward
        problems = _problems(self._config, context.data)
        self._info = problems.info
        most = self._config.dataset_limit or None
        self._problems = {problem.id: problem for each in problems.by_split.values() for problem in each[:most]}
        self._tasks = {
            split: tuple(self._task(problem, split) for problem in each[:most])
            for split, each in problems.by_split.items()
        }

    def sandbox_spec(self) -> ExecutionSpec:
        """A box that executes code."""
        return ExecutionSpec(fresh=self._config.fresh_sandboxes)

    def data(self) -> DataInfo:
        """The file, the folder, or `embedded`."""
        return self._info

    def splits(self) -> Sequence[str]:
        """Those of train, dev, test and prompt that have problems."""
        return tuple(self._tasks)

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split by number; `validation` is MBPP's name of `dev`.

        Raises:
            DataError: There is no such split.
        """
        name = SPLIT_NAMES.get(split, split)
        if name not in self._tasks:
            raise DataError(
                f"{self._info.name} has no split {split!r}; it has: {', '.join(self._tasks)}.",
                remedy="name another split, or give --data another file",
            )
        return self._tasks[name]

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> MbppSession:
        """Starts an episode of exactly this task.

        Raises:
            EnvironmentFault: The task is not of this data, or the box does not execute code.
        """
        problem = self._problem(task)
        if not isinstance(sandbox, ExecutingSandbox):
            raise EnvironmentFault("The box that was given does not execute code.")
        return MbppSession(sandbox, problem, task, self._config, self._reward)

    def opening(self, task: Task) -> Prompt:
        """See `session.opening`. Raises EnvironmentFault when the task is not of this data."""
        return opening(self._problem(task), self._config)

    def demonstrate(self, messages: Sequence[Message]) -> AssistantTurn | None:
        """The reference solution, whenever the user has the word; a careless one for the shares that options name."""
        if not messages or messages[-1].role != "user":
            return None
        asked = next(message.content for message in messages if message.role == "user")
        problem = self._by_opening.get(asked)
        if problem is None or not problem.reference:
            return None
        attempt = 1 + sum(message.role == "assistant" for message in messages)
        code = problem.careless if self._is_careless(problem, attempt) else problem.reference
        return AssistantTurn(text=f"```python\n{code}\n```")

    def _problem(self, task: Task) -> Problem:
        problem = self._problems.get(task.id)
        if problem is None:
            raise EnvironmentFault(f"{self._info.name} has no problem {task.id!r}.")
        return problem

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
        """See `measures`."""
        return measures(trajectories, self._config.max_attempts)

    def _is_careless(self, problem: Problem, attempt: int) -> bool:
        share = self._config.careless if attempt == 1 else self._config.careless_again
        return random.Random(f"careless:{self._config.seed}:{problem.id}:{attempt}").random() < share

    @cached_property
    def _by_opening(self) -> dict[str, Problem]:
        return {problem.opening(self._config.shown_tests): problem for problem in self._problems.values()}

    def _task(self, problem: Problem, split: str) -> Task:
        # The tests that are shown are part of the question: MBPP has problems that only they tell apart.
        return Task(id=problem.id, prompt=problem.opening(self._config.shown_tests), split=split, cluster=problem.id)


def _problems(config: MbppConfig, data: Path | None) -> Problems:
    if config.family == "functions":
        if data is not None:
            raise ConfigError(
                f"environment.options.family = functions are embedded problems; the ones asked are those of {data}.",
                remedy="leave out --data, or environment.options.family",
            )
        return function_problems(config.tasks, config.seed)
    return embedded() if data is None else load(data)
