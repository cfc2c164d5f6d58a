"""Rewards compute a number and its parts from the policy's answer. Pure."""

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
        table: [R][C] the table for programs, header first; empty if there is none.
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
        """Grade an answer. Any solution gets a verdict: one that cannot be parsed is a wrong answer, not an error.

        Raises:
            EnvironmentFault: The reward itself failed (a user's function raised): never a reward of 0.
        """

    def spec(self) -> Mapping[str, Any] | None:
        """Return the JSON-ready specification; a file of it, given as option `spec`, makes the same reward.

        Default: None, the reward is described by its options alone.
        """
        return None

    def cases(self) -> Sequence[Case]:
        """Return tests that hold under the specification: built-in ones, then those of its file. Default: none."""
        return ()

    def score_beside(self, request: RewardRequest, own: Rewards) -> Rewards:
        """Grade an answer and keep the parts of the environment's own verdict in addition to the reward's parts.

        A part of the environment whose name the reward uses too gets the prefix `environment_`, except `correct`,
        which stays the environment's because accuracy follows it. A reward without an explanation gets that of the
        environment, marked as such where the totals differ.
        """
        given = self.score(request)
        clashing = given.components.keys() - {"correct"}
        beside = {f"{OWN_PREFIX}{name}" if name in clashing else name: part for name, part in own.components.items()}
        components = {**given.components, **beside}
        reason = own.explanation
        if reason and given.total != own.total:
            reason = f"from the reward that was chosen; the environment says: {reason}"
        return replace(given, components=components, explanation=given.explanation or reason)
