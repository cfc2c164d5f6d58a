"""The `forecast` environment: questions about the future of shares in a single turn, in this process."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.errors import ConfigError
from finqa_cli.types import Prompt, Rewards, Task, Trajectory
from finqa_plugins.environments._task_files.row_environment import SingleReplyEnvironment
from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.forecast_generate import generate
from finqa_plugins.environments.forecast.forecast_measures import measure
from finqa_plugins.environments.forecast.forecast_prompt import opening
from finqa_plugins.environments.forecast.forecast_rows import ForecastRow, cluster_of, load
from finqa_plugins.environments.forecast.forecast_verdict import judge

_OF_EMBEDDED = ("companies", "questions", "noise", "track_record", "hindsight", "overconfident")
_OF_FILES = ("match", "skip_bad", "holdout")


class ForecastEnvironment(SingleReplyEnvironment[ForecastRow]):
    """Forecast questions with one reply each, measures of calibration, and demonstrations."""

    def __init__(self, config: ForecastConfig | None, context: EnvironmentContext) -> None:
        """Read the data at once, so that a bad file fails before anything is started.

        Raises:
            ConfigError: An option has no effect beside the configured reward, or with or without files.
            DataError: The data at `context.data` is missing or malformed.
        """
        self._config = config or ForecastConfig()
        _check(self._config, context)
        data = load(context.data, self._config) if context.data is not None else generate(self._config)
        super().__init__(data, context.reward)

    def task(self, row: ForecastRow, split: str) -> Task:
        """Return the question as a task."""
        cluster = cluster_of(row, self._config)
        return Task(id=row.id, prompt=row.question, split=split, cluster=cluster, kind=row.question_type)

    def prompt(self, row: ForecastRow) -> Prompt:
        """Return the messages of a row with the wanted sections and instructions."""
        return opening(row, self._config)

    def solution(self, row: ForecastRow, attempt: int) -> str:
        """Return the truth between tags, or without `hindsight` the signal.

        The share `careless` of the tasks, always the same tasks, is demonstrated without the tags, and the share
        `overconfident` with confidence 1.
        """
        if attempt > 1:
            return ""
        answer = row.truths[0] if self._config.hindsight else row.extra["signal"]
        if not self._has_habit(row, "careless", self._config.careless):
            answer = f"<answer>{answer}</answer>"
        if not self._config.asks_confidence:
            return answer
        sure = self._has_habit(row, "overconfident", self._config.overconfident)
        confidence = 1.0 if sure else round(row.extra["signal_probability"], 2)
        return f"{answer}<confidence>{confidence}</confidence>"

    def right_answer(self, task: Task) -> str:
        """Return the accepted answers."""
        return " or ".join(self._row(task).truths)

    def judge(self, row: ForecastRow, task: Task, text: str) -> Rewards:
        """Return the verdict of `judge`."""
        return judge(text, row, task, self._config, self._reward)

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
        """Compute calibration, accuracy by uncertainty, directions and refusals; see `forecast_measures`."""
        return measure(trajectories)

    def _has_habit(self, row: ForecastRow, name: str, share: float) -> bool:
        """Return whether a task belongs to the share of tasks with a habit, by seed, habit and id alone."""
        return random.Random(f"forecast:{self._config.seed}:{name}:{row.id}").random() < share


def _check(config: ForecastConfig, context: EnvironmentContext) -> None:
    files = context.data is not None
    defaults = ForecastConfig()
    reasons = {
        name: f"has no effect {'with' if files else 'without'} --data"
        for name in (_OF_EMBEDDED if files else _OF_FILES)
        if getattr(config, name) != getattr(defaults, name)
    }
    if context.reward is not None:
        judged = "belongs to the environment's own reward, which --reward replaces"
        reasons |= {"reward": judged} if config.reward == "rlcr" else {}
        reasons |= {"uncertainty": judged} if config.uncertainty == "reward" else {}
    for name, reason in reasons.items():
        raise ConfigError(
            f"Option {name}={getattr(config, name)} of the environment forecast {reason}.",
            remedy=f"leave environment.options.{name} out",
        )
