"""The `finqa-text` environment: single-turn FinQA, played in this process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property

from finqa_cli.contracts import Environment, EnvironmentContext, Reward, Sandbox, TextSession
from finqa_cli.errors import DataError, EnvironmentFault
from finqa_cli.types import AssistantTurn, DataInfo, Message, Observation, Prompt, Rewards, Task
from finqa_plugins.environments.finqa_text.config import FinQATextConfig
from finqa_plugins.environments.finqa_text.text_files import load
from finqa_plugins.environments.finqa_text.text_generate import generate
from finqa_plugins.environments.finqa_text.text_prompt import opening
from finqa_plugins.environments.finqa_text.text_rows import Row
from finqa_plugins.environments.finqa_text.text_verdict import judge

_STAND_INS = {"dev": "test", "test": "dev"}
_REMEDY = "name another split, or give --data a training file or a folder with a file for each split"


class FinQATextEnvironment(Environment):
    """See `finqa_cli.contracts.Environment`. It demonstrates the gold programs."""

    def __init__(self, config: FinQATextConfig | None, context: EnvironmentContext) -> None:
        """Reads the data at once, so that a bad file fails before anything is started.

        Raises:
            DataError: The data at `context.data` is missing or malformed.
        """
        self._config = config or FinQATextConfig()
        self._reward = context.reward
        self._data = load(context.data, self._config) if context.data is not None else generate(self._config)
        self._tasks = {split: tuple(_task(row, split) for row in rows) for split, rows in self._data.rows.items()}
        self._rows = {row.id: row for rows in self._data.rows.values() for row in rows}

    def sandbox_spec(self) -> None:
        """None: nothing that the policy writes is run, programs are only calculated."""
        return

    def data(self) -> DataInfo:
        """The file, the folder, or `embedded`."""
        return self._data.info

    def splits(self) -> Sequence[str]:
        """Those of train, dev and test that have rows."""
        return tuple(self._tasks)

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split in the order of the file.

        Data with only one of `dev` and `test` answers to both names: either means the rows to be evaluated on.

        Raises:
            DataError: There is no such split.
        """
        for name in (split, _STAND_INS.get(split, "")):
            if name in self._tasks:
                return self._tasks[name]
        info = self._data.info
        if split == "train" and info.evaluation_only:
            raise DataError(f"{info.name} is for evaluation only: nothing is trained on it.", remedy=_REMEDY)
        raise DataError(f"{info.name} has no split {split!r}; it has: {', '.join(self._tasks)}.", remedy=_REMEDY)

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> FinQATextSession:
        """Starts an episode of exactly this task.

        Raises:
            EnvironmentFault: The task is not of this data.
        """
        row = self._rows.get(task.id)
        if row is None:
            raise EnvironmentFault(f"{self._data.info.name} has no question {task.id!r}.")
        return FinQATextSession(row, task, self._reward)

    def demonstrate(self, messages: Sequence[Message]) -> AssistantTurn | None:
        """The gold answer and program, for the opening of one of the tasks. Of equal pages and questions the first."""
        if not messages or messages[-1].role != "user":
            return None
        row = self._by_text.get(messages[-1].content)
        return None if row is None else AssistantTurn(text=gold_reply(row))

    @cached_property
    def _by_text(self) -> dict[str, Row]:
        return {row.text: row for row in reversed(self._rows.values())}


class FinQATextSession(TextSession):
    """See `finqa_cli.contracts.TextSession`: one prompt, one reply."""

    def __init__(self, row: Row, task: Task, reward: Reward | None) -> None:
        self._row = row
        self._task = task
        self._reward = reward
        self._text: str | None = None

    def prompt(self) -> Prompt:
        """The system message, and the page with its question."""
        return opening(self._row.text)

    async def reply(self, text: str) -> Observation:
        """Takes the one reply; whatever it says, the episode is over."""
        if self._text is not None:
            return Observation(text="Error: the question is answered already.", done=True, is_error=True)
        self._text = text
        return Observation(text="Answer received.", done=True)

    async def grade(self) -> Rewards:
        """See `verdict.judge`; an episode without a reply is judged as an empty one.

        Raises:
            EnvironmentFault: The configured reward failed.
        """
        return judge(self._text or "", self._row, self._task, self._reward)

    async def close(self) -> None:
        """Nothing to free."""


def gold_reply(row: Row) -> str:
    """What a perfect policy replies."""
    program = {"program": row.program} if row.program else {}
    return json.dumps({"answer": row.answer, **program}, ensure_ascii=False)


def _task(row: Row, split: str) -> Task:
    return Task(id=row.id, prompt=row.question, split=split, cluster=row.company, kind=row.kind)
