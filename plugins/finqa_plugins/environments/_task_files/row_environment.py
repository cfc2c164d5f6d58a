"""Base classes of environments whose tasks are rows in memory, with any number of replies or with one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import takewhile
from typing import Generic

from finqa_cli.contracts import Environment, Reward, Sandbox, TextSession
from finqa_cli.errors import DataError, EnvironmentFault
from finqa_cli.types import AssistantTurn, DataInfo, Message, Observation, Prompt, Rewards, Task
from finqa_cli.types.splits import SPLIT_NAMES
from finqa_plugins.environments._task_files.task_rows import Row, TaskData


class RowEnvironment(Environment, Generic[Row]):
    """Serves the rows of one source as tasks, and demonstrates their solutions."""

    def __init__(self, data: TaskData[Row]) -> None:
        self._data = data
        self._rows = {row.id: row for rows in data.rows.values() for row in rows}
        self._tasks = {split: tuple(self.task(row, split) for row in rows) for split, rows in data.rows.items()}

    @abstractmethod
    def task(self, row: Row, split: str) -> Task:
        """Return the task of a row."""

    @abstractmethod
    def prompt(self, row: Row) -> Prompt:
        """Return the prompt of a row; its last message is the user's."""

    @abstractmethod
    def solution(self, row: Row, attempt: int) -> str:
        """Return the reply that demonstrates a solution at an attempt, counted from 1; empty if there is none."""

    def data(self) -> DataInfo:
        """Return the name of the file or folder, or `embedded`."""
        return self._data.info

    def splits(self) -> Sequence[str]:
        """Return the splits that have rows."""
        return tuple(self._tasks)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return all tasks of a split in the order of the source; `validation` and similar names mean `dev`.

        Raises:
            DataError: There is no such split.
        """
        name = SPLIT_NAMES.get(split, split)
        if name not in self._tasks:
            raise self._split_error(split, f"has no split {split!r}; it has: {', '.join(self._tasks)}")
        return self._tasks[name]

    def opening(self, task: Task) -> Prompt:
        """Return the prompt of a task.

        Raises:
            EnvironmentFault: The task is not of this data.
        """
        return self.prompt(self._row(task))

    def demonstrate(self, messages: Sequence[Message]) -> AssistantTurn | None:
        """Return the solution for the next attempt at a task; if tasks have equal prompts, the first one is used."""
        if not messages or messages[-1].role != "user":
            return None
        asked = list(takewhile(lambda message: message.role != "assistant", messages))
        row = self._by_prompt.get(asked[-1].content) if asked else None
        attempt = 1 + sum(message.role == "assistant" for message in messages)
        text = self.solution(row, attempt) if row is not None else ""
        return AssistantTurn(text=text) if text else None

    def _row(self, task: Task) -> Row:
        row = self._rows.get(task.id)
        if row is None:
            raise EnvironmentFault(f"{self._data.info.name} has no question {task.id!r}.")
        return row

    @cached_property
    def _by_prompt(self) -> dict[str, Row]:
        return {self.prompt(row).messages[-1].content: row for row in reversed(self._rows.values())}

    def _split_error(self, split: str, reason: str) -> DataError:
        remedy = (
            f"choose another split, or pass --data a file of split {split!r} or a folder with a file for each split"
        )
        return DataError(f"{self._data.info.name} {reason}.", remedy=remedy)


class SingleReplyEnvironment(RowEnvironment[Row]):
    """Each episode is one prompt and one reply, in this process. Nothing that the policy writes is executed."""

    def __init__(self, data: TaskData[Row], reward: Reward | None) -> None:
        super().__init__(data)
        self._reward = reward

    @abstractmethod
    def judge(self, row: Row, task: Task, text: str) -> Rewards:
        """Judge a whole reply; an episode without a reply is judged as an empty reply.

        Raises:
            EnvironmentFault: The configured reward failed.
        """

    def tasks(self, split: str) -> Sequence[Task]:
        """Return all tasks of a split in the order of the source.

        Raises:
            DataError: There is no such split.
        """
        if split == "train" and split not in self._tasks and self._data.info.evaluation_only:
            raise self._split_error(split, "is for evaluation only and cannot be used for training")
        return super().tasks(split)

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> SingleReplySession:
        """Start an episode of exactly this task.

        Raises:
            EnvironmentFault: The task is not of this data.
        """
        row = self._row(task)
        return SingleReplySession(self.prompt(row), partial(self.judge, row, task))


class SingleReplySession(TextSession):
    """Takes one reply of any content and judges it."""

    def __init__(self, prompt: Prompt, judge: Callable[[str], Rewards]) -> None:
        self._prompt = prompt
        self._judge = judge
        self._text: str | None = None

    def prompt(self) -> Prompt:
        """Return the messages that the episode opens with."""
        return self._prompt

    async def reply(self, text: str) -> Observation:
        """Take the reply; the episode is over."""
        if self._text is not None:
            return Observation(text="Error: the question is answered already.", done=True, is_error=True)
        self._text = text
        return Observation(text="Answer received.", done=True)

    async def grade(self) -> Rewards:
        """Return the verdict on the reply.

        Raises:
            EnvironmentFault: The configured reward failed.
        """
        return self._judge(self._text or "")
