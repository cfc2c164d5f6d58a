"""The `code` environment: a function is asked for, what comes is executed in a sandbox and judged outside of it."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import structlog

from finqa_cli.contracts import Environment, EnvironmentContext, ExecutingSandbox, Sandbox, TextSession
from finqa_cli.errors import ConfigError, DataError, EnvironmentFault
from finqa_cli.types import (
    AssistantTurn,
    DataInfo,
    ExecutionLimits,
    ExecutionSpec,
    Message,
    Observation,
    Prompt,
    Rewards,
    Task,
    Trajectory,
)
from finqa_cli.types.splits import SPLITS
from finqa_plugins.environments.code_tasks import code_measures
from finqa_plugins.environments.code_tasks.code_files import load
from finqa_plugins.environments.code_tasks.code_functions import function_tasks
from finqa_plugins.environments.code_tasks.code_problems import CodeTask
from finqa_plugins.environments.code_tasks.code_verdict import judge
from finqa_plugins.environments.code_tasks.config import CodeConfig
from finqa_plugins.environments.code_tasks.embedded_tasks import seed_tasks
from finqa_plugins.environments.code_tasks.truth import Truth, find_truth

WAITING_S = 10.0
"""Wall time on top of three times the processor time: what waits instead of computing has this long."""

log = structlog.get_logger(__name__)


class CodeEnvironment(Environment):
    """See `finqa_cli.contracts.Environment`. It demonstrates solutions, and has figures of its own."""

    def __init__(self, config: CodeConfig | None, context: EnvironmentContext) -> None:
        """Reads the tasks at once, so that a bad file fails before anything is started.

        Raises:
            DataError: The data at `context.data` is missing or malformed.
            ConfigError: A reward is configured: what code does is no answer that it could compare with a truth.
        """
        if context.reward is not None:
            raise ConfigError(
                "Environment 'code' judges by its tests; the other rewards compare answers.",
                remedy="leave out --reward",
            )
        self._config = config or CodeConfig()
        if context.data is not None:
            self._info, tasks = load(context.data)
            # Who trains on tasks of their own is evaluated on ours, until some of theirs are held out.
            beside = _held_out_beside(tasks)
            if beside:
                splits = ", ".join(dict.fromkeys(task.split for task in beside))
                log.warning("the data holds out no tasks: embedded ones stand in", data=self._info.name, splits=splits)
            tasks += beside
        else:
            tasks = self._embedded()
            content = hashlib.sha256(repr(tasks).encode()).hexdigest()
            self._info = DataInfo(name="embedded", digest=f"sha256:{content}")
        self._by_id = {task.id: task for task in reversed(tasks)}
        self._tasks = {name: tuple(_task(one) for one in tasks if one.split == name) for name in SPLITS}
        self._truths = _Truths(self._config.seed)
        seconds = self._config.time_limit_s
        self._limits = ExecutionLimits(cpu_s=seconds, wall_s=3 * seconds + WAITING_S)

    def sandbox_spec(self) -> ExecutionSpec:
        """Boxes that execute."""
        return ExecutionSpec(fresh=self._config.fresh_sandboxes)

    def data(self) -> DataInfo:
        """The file, the folder, or `embedded`."""
        return self._info

    def splits(self) -> Sequence[str]:
        """Those of train, dev and test that have tasks."""
        return tuple(name for name, tasks in self._tasks.items() if tasks)

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split in the order of the file.

        Raises:
            DataError: There is no such split.
        """
        if not self._tasks.get(split):
            raise DataError(
                f"{self._info.name} has no tasks of split {split!r}; it has: {', '.join(self.splits())}.",
                remedy=f'give some tasks split = "{split}", or name another split',
            )
        return self._tasks[split]

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> CodeSession:
        """Starts an episode of exactly this task; the first one of a task finds its truth.

        Raises:
            SandboxError: The box failed.
            EnvironmentFault: The task is not of this data, or the box executes nothing.
            DataError: The task's own tests or reference fail.
        """
        found = self._found(task)
        if not isinstance(sandbox, ExecutingSandbox):
            raise EnvironmentFault("The sandbox of the session executes nothing.")
        truth = await self._truths.of(found, sandbox)
        return CodeSession(found, truth, sandbox, self._limits, raising_fails=self._config.raising == "failed")

    def opening(self, task: Task) -> Prompt:
        """The task's own text and nothing else, so that a base model can go on with it.

        Raises:
            EnvironmentFault: The task is not of this data.
        """
        return _opening(self._found(task))

    def demonstrate(self, messages: Sequence[Message]) -> AssistantTurn | None:
        """A solution, for the opening of one of the tasks; a careless one for the share of them that options name."""
        if not messages or messages[-1].role != "user":
            return None
        task = self._by_prompt.get(messages[-1].content)
        if task is None or not task.solution:
            return None
        rng = random.Random(f"careless:{self._config.seed}:{task.id}")
        careless = bool(task.careless) and rng.random() < self._config.careless
        return AssistantTurn(text=(task.careless if careless else task.solution).rstrip())

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
        """See `measures.measure`."""
        return code_measures.measure(trajectories)

    def _found(self, task: Task) -> CodeTask:
        found = self._by_id.get(task.id)
        if found is None:
            raise EnvironmentFault(f"{self._info.name} has no task {task.id!r}.")
        return found

    @cached_property
    def _by_prompt(self) -> dict[str, CodeTask]:
        return {task.prompt: task for task in self._by_id.values()}

    def _embedded(self) -> tuple[CodeTask, ...]:
        if self._config.family == "functions":
            return function_tasks(self._config.tasks, self._config.seed)
        return seed_tasks()


def _opening(task: CodeTask) -> Prompt:
    return Prompt(messages=(Message(role="user", content=task.prompt),), tools=())


class CodeSession(TextSession):
    """See `finqa_cli.contracts.TextSession`: one prompt, one reply. The reply is executed when it is graded."""

    def __init__(
        self, task: CodeTask, truth: Truth, box: ExecutingSandbox, limits: ExecutionLimits, *, raising_fails: bool
    ) -> None:
        self._task = task
        self._truth = truth
        self._box = box
        self._limits = limits
        self._raising_fails = raising_fails
        self._text: str | None = None
        self._verdict: Rewards | None = None

    def prompt(self) -> Prompt:
        """See `CodeEnvironment.opening`."""
        return _opening(self._task)

    async def reply(self, text: str) -> Observation:
        """Takes the one reply; whatever it says, the episode is over."""
        if self._text is not None:
            return Observation(text="Error: the code is written already.", done=True, is_error=True)
        self._text = text
        return Observation(text="Code received.", done=True)

    async def grade(self) -> Rewards:
        """See `verdict.judge`; an episode without a reply is judged as an empty one.

        Raises:
            SandboxError: The box failed: there is no verdict.
        """
        if self._verdict is None:
            self._verdict = await judge(
                self._text or "",
                self._task,
                self._truth,
                self._box,
                self._limits,
                raising_fails=self._raising_fails,
            )
        return self._verdict

    async def close(self) -> None:
        """Nothing to free."""


class _Truths:
    """Truths by task, each found once; where that failed the next episode tries again."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._found: dict[str, Truth] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def of(self, task: CodeTask, box: ExecutingSandbox) -> Truth:
        async with self._locks.setdefault(task.id, asyncio.Lock()):
            if task.id not in self._found:
                self._found[task.id] = await find_truth(box, task, self._seed)
            return self._found[task.id]


def _held_out_beside(own: Sequence[CodeTask]) -> tuple[CodeTask, ...]:
    taken = {"train", *(task.split for task in own)}
    names = {task.id for task in own}
    return tuple(task for task in seed_tasks() if task.split not in taken and task.id not in names)


def _task(task: CodeTask) -> Task:
    return Task(id=task.id, prompt=task.prompt, split=task.split, cluster=task.id, kind=task.kind)
