"""The `forecast` environment: questions about the future of shares in a single turn, in this process."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from finqa_cli.contracts import Environment, EnvironmentContext, Reward, Sandbox
from finqa_cli.errors import ConfigError, DataError, EnvironmentFault
from finqa_cli.types import AssistantTurn, DataInfo, Message, Prompt, Rewards, Task, Trajectory
from finqa_plugins.environments._task_files.single_reply import SingleReplySession
from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.forecast_generate import generate
from finqa_plugins.environments.forecast.forecast_measures import measure
from finqa_plugins.environments.forecast.forecast_prompt import opening
from finqa_plugins.environments.forecast.forecast_rows import ForecastRow, cluster_of, load
from finqa_plugins.environments.forecast.forecast_verdict import judge

_OF_EMBEDDED = ("companies", "questions", "noise", "track_record", "hindsight", "overconfident")
_OF_FILES = ("match", "skip_bad", "holdout")
_STAND_INS = {"dev": "test", "test": "dev"}
_REMEDY = "name another split, or give --data a training file or a folder with a file for each split"


class ForecastEnvironment(Environment):
    """Demonstrates the truths and measures calibration. Nothing that the policy writes is run."""

    def __init__(self, config: ForecastConfig | None, context: EnvironmentContext) -> None:
        """Read the data at once, so that a bad file fails before anything is started.

        Raises:
            ConfigError: An option has no effect beside the configured reward, or with or without files.
            DataError: The data at `context.data` is missing or malformed.
        """
        self._config = config or ForecastConfig()
        _check(self._config, context)
        self._reward = context.reward
        self._data = load(context.data, self._config) if context.data is not None else generate(self._config)
        self._tasks = {
            split: tuple(_task(row, split, self._config) for row in rows) for split, rows in self._data.rows.items()
        }
        self._rows = {row.id: row for rows in self._data.rows.values() for row in rows}

    def data(self) -> DataInfo:
        """Return the name of the file or folder, or `embedded`."""
        return self._data.info

    def splits(self) -> Sequence[str]:
        """Return those of train, dev and test that have rows."""
        return tuple(self._tasks)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return all tasks of a split in the order of the file.

        Where data has only one of `dev` and `test`, both names mean it: the rows to evaluate on.

        Raises:
            DataError: There is no such split.
        """
        for name in (split, _STAND_INS.get(split, "")):
            if name in self._tasks:
                return self._tasks[name]
        raise DataError(
            f"{self._data.info.name} has no split {split!r}; it has: {', '.join(self._tasks)}.", remedy=_REMEDY
        )

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> ForecastSession:
        """Start an episode of exactly this task.

        Raises:
            EnvironmentFault: The task is not of this data.
        """
        return ForecastSession(self._row(task), task, self._config, self._reward)

    def opening(self, task: Task) -> Prompt:
        """Return the prompt of a task.

        Raises:
            EnvironmentFault: The task is not of this data.
        """
        return opening(self._row(task), self._config)

    def demonstrate(self, messages: Sequence[Message]) -> AssistantTurn | None:
        """Return the truth between tags, for the opening of one of the tasks; of equal prompts that of the first.

        Without `hindsight` it is the signal. The share `careless` of the tasks, always the same ones, is demonstrated
        without the tags, and the share `overconfident` with confidence 1.
        """
        if not messages or messages[-1].role != "user":
            return None
        row = self._by_text.get(messages[-1].content)
        return None if row is None else AssistantTurn(text=_demonstration(row, self._config))

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
        """Compute calibration, accuracy by uncertainty, directions and refusals; see `forecast_measures`."""
        return measure(trajectories)

    def _row(self, task: Task) -> ForecastRow:
        row = self._rows.get(task.id)
        if row is None:
            raise EnvironmentFault(f"{self._data.info.name} has no question {task.id!r}.")
        return row

    @cached_property
    def _by_text(self) -> dict[str, ForecastRow]:
        rows = reversed(self._rows.values())
        return {opening(row, self._config).messages[-1].content: row for row in rows}


def _check(config: ForecastConfig, context: EnvironmentContext) -> None:
    files = context.data is not None
    defaults = ForecastConfig()
    reasons = {
        name: f"has no effect {'with' if files else 'without'} --data"
        for name in (_OF_EMBEDDED if files else _OF_FILES)
        if getattr(config, name) != getattr(defaults, name)
    }
    if context.reward is not None:
        judged = "is of the environment's own verdict, and --reward takes its place"
        reasons |= {"reward": judged} if config.reward == "rlcr" else {}
        reasons |= {"uncertainty": judged} if config.uncertainty == "reward" else {}
    for name, reason in reasons.items():
        raise ConfigError(
            f"Option {name}={getattr(config, name)} of the environment forecast {reason}.",
            remedy=f"leave environment.options.{name} out",
        )


class ForecastSession(SingleReplySession):
    """One question, and one reply."""

    def __init__(self, row: ForecastRow, task: Task, config: ForecastConfig, reward: Reward | None) -> None:
        super().__init__(opening(row, config))
        self._row = row
        self._task = task
        self._config = config
        self._reward = reward

    def judge(self, text: str) -> Rewards:
        """Return the verdict of `judge`."""
        return judge(text, self._row, self._task, self._config, self._reward)


def _demonstration(row: ForecastRow, config: ForecastConfig) -> str:
    answer = row.truths[0] if config.hindsight else row.extra["signal"]
    if not _habit("careless", config.careless, row, config):
        answer = f"<answer>{answer}</answer>"
    if not config.asks_confidence:
        return answer
    sure = _habit("overconfident", config.overconfident, row, config)
    confidence = 1.0 if sure else round(row.extra["signal_probability"], 2)
    return f"{answer}<confidence>{confidence}</confidence>"


def _habit(name: str, share: float, row: ForecastRow, config: ForecastConfig) -> bool:
    """Whether a task is in the share of tasks that are demonstrated in this way."""
    return random.Random(f"forecast:{config.seed}:{name}:{row.id}").random() < share


def _task(row: ForecastRow, split: str, config: ForecastConfig) -> Task:
    return Task(id=row.id, prompt=row.question, split=split, cluster=cluster_of(row, config), kind=row.question_type)
