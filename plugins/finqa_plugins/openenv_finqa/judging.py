"""A configured reward instead of the server's verdict: scored on this side, with the truth of the snapshot."""

from __future__ import annotations

import json
from functools import cached_property

from finqa_cli.contracts import Reward, RewardRequest, Specified
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.types import Rewards, Snapshot, Task

TRUTH_FILE = "truth.jsonl"


class Judge:
    """Scores submitted answers. The truth is read when the first answer comes and is in no message."""

    def __init__(self, reward: Reward, snapshot: Snapshot) -> None:
        """Raises ConfigError when the reward reads JSON replies: `submit_answer` takes the plain answer."""
        if isinstance(reward, Specified) and reward.spec().get("format") == "json":
            raise ConfigError(
                "The finqa environment submits plain answers, but the reward wants JSON.",
                remedy="--set reward.options.format=plain",
            )
        self._reward = reward
        self._snapshot = snapshot

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
        if task.id not in self._truths:
            raise self._damaged(f"no truth for {task.id!r}")
        truth = self._truths[task.id]
        request = RewardRequest(task=task, solution=answer, truth=truth, extra_info={"question_type": task.kind})
        rewards = self._reward.score(request)
        return Rewards(
            total=rewards.total,
            components={**rewards.components, **verdict.components},
            explanation=rewards.explanation or verdict.explanation,
        )

    @cached_property
    def _truths(self) -> dict[str, str]:
        path = self._snapshot.path / TRUTH_FILE
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
            return {row["id"]: row["answer"] for row in rows}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"{path}: {error!r}") from error

    def _damaged(self, reason: str) -> DataError:
        name = self._snapshot.name
        return DataError(
            f"Snapshot {name!r} is damaged: {reason}.", remedy=f"finqa snapshot build --snapshot-name {name}"
        )
