"""Contract of rewards, which compute a number and its parts from the policy's answer. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from finqa_cli.grading.answers import Case
from finqa_cli.types import Rewards, Task

OWN_PREFIX = "environment_"
"""Prefix of a part of the environment's own verdict whose name the configured reward uses too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRequest:
    """One answer to grade, with all information for a reward.

    Attributes:
        task: The question.
        solution: The policy's answer: the submitted answer, or the whole text of a single-turn reply.
        truth: The right answer from the data set.
        program: The right program in FinQA's language; empty when the data has none.
        table: `[R][C]` the table for programs, header first; empty if there is none.
        data_source: Name of the data set: the first argument of verl's reward functions.
        extra_info: Further facts about the row (`question_type`, `uncertainty`, ...).
    """

    task: Task
    solution: str
    truth: str
    program: str = ""
    table: tuple[tuple[str, ...], ...] = ()
    data_source: str = "finqa"
    extra_info: Mapping[str, Any] = field(default_factory=dict)


class Reward(ABC):
    """Base class of all rewards, constructed with `(config)`. Only `score` is required."""

    @abstractmethod
    def score(self, request: RewardRequest) -> Rewards:
        """Grade an answer. Any solution gets a verdict: a solution that cannot be parsed is wrong, not an error.

        Raises:
            EnvironmentFault: The reward itself failed, for example because a user's function raised. Such a failure is
                never a reward of 0.
        """

    def spec(self) -> Mapping[str, Any] | None:
        """Return the JSON-ready specification. Written to a file and given as option `spec`, it makes the same reward.

        Default: None, the reward is described by its options alone.
        """
        return None

    def cases(self) -> Sequence[Case]:
        """Return test cases that the reward must pass: built-in ones, then those of the specification's file.

        Default: none.
        """
        return ()

    def score_beside(self, request: RewardRequest, own: Rewards) -> Rewards:
        """Grade an answer and keep the parts of the environment's own verdict in addition to the reward's parts.

        If a part of the environment has the name of a part of the reward, it gets the prefix `environment_`. Only
        `correct` stays the environment's, because accuracy is computed from it. A reward without an explanation gets
        the environment's explanation, marked as such if the totals differ.

        Args:
            request: The answer.
            own: The environment's own verdict.

        Raises:
            EnvironmentFault: See `score`.
        """
        given = self.score(request)
        clashing = given.components.keys() - {"correct"}
        beside = {f"{OWN_PREFIX}{name}" if name in clashing else name: part for name, part in own.components.items()}
        components = {**given.components, **beside}
        reason = own.explanation
        if reason and given.total != own.total:
            reason = f"from the reward that was chosen; the environment says: {reason}"
        return replace(given, components=components, explanation=given.explanation or reason)
