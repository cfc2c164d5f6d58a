"""What is judged on this side, with the truth of the snapshot: exactness, and a configured reward."""

from __future__ import annotations

import json
from functools import cached_property

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.types import Rewards, Snapshot, Task

TRUTH_FILE = "truth.jsonl"

OWN = "environment_"
"""Stands before a part of the verdict where a configured reward has one of the same name."""


class Truths:
    """The gold answers of a snapshot. They are read when the first answer comes, and are in no message."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def of(self, task: Task) -> str:
        """The gold answer.

        Raises:
            DataError: The snapshot has none for the task, or its file is damaged.
        """
        if task.id not in self._answers:
            raise self._damaged(f"no truth for {task.id!r}")
        return self._answers[task.id]

    @cached_property
    def _answers(self) -> dict[str, str]:
        path = self._snapshot.path / TRUTH_FILE
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
            return {row["id"]: str(row["answer"]) for row in rows}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"{path}: {error!r}") from error

    def _damaged(self, reason: str) -> DataError:
        name = self._snapshot.name
        return DataError(
            f"Snapshot {name!r} is damaged: {reason}.", remedy=f"finqa snapshot build --snapshot-name {name}"
        )


class Judge:
    """Scores submitted answers by a configured reward."""

    def __init__(self, reward: Reward, truths: Truths) -> None:
        """Raises ConfigError when the reward reads JSON replies: `submit_answer` takes the plain answer."""
        if (reward.spec() or {}).get("format") == "json":
            raise ConfigError(
                "The finqa environment submits plain answers, but the reward wants JSON.",
                remedy="--set reward.options.format=plain",
            )
        self._reward = reward
        self._truths = truths

    def judge(self, task: Task, answer: str, verdict: Rewards) -> Rewards:
        """The configured reward of an answer; the server's parts stay beside its own, so accuracy stays comparable.

        Args:
            task: What was asked.
            answer: As submitted; empty when none was.
            verdict: What the server says.

        Raises:
            DataError: The snapshot has no truth for the task, or its file is damaged.
            EnvironmentFault: The reward itself failed.
        """
        truth = self._truths.of(task)
        request = RewardRequest(task=task, solution=answer, truth=truth, extra_info={"question_type": task.kind})
        rewards = self._reward.score(request)
        own = {
            f"{OWN}{name}" if name in rewards.components and name != "correct" else name: value
            for name, value in verdict.components.items()
        }
        return Rewards(
            total=rewards.total,
            components={**rewards.components, **own},
            explanation=rewards.explanation or verdict.explanation,
        )
