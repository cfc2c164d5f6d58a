"""Rewards: from what the policy answered to a number and its parts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from finqa_cli.grading.answers import Case
from finqa_cli.types import Rewards, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRequest:
    """One answer to be judged, with everything that a judge may know.

    Attributes:
        task: The question.
        solution: What the policy answered: the submitted answer, or the whole text of a single-turn reply.
        truth: The right answer, as the data set has it.
        program: The right program in FinQA's language; empty when the data has none.
        table: [R][C] the table that a program may read, header first; empty when there is none.
        data_source: Name of the data set, the first argument of verl's reward functions.
        extra_info: Further facts about the row (`question_type`, `uncertainty`, ...).
    """

    task: Task
    solution: str
    truth: str
    program: str = ""
    table: tuple[tuple[str, ...], ...] = ()
    data_source: str = "finqa"
    extra_info: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Reward(Protocol):
    """Constructed as `Reward(config)`."""

    def score(self, request: RewardRequest) -> Rewards:
        """The verdict. Any solution gives one: what cannot be read is a wrong answer, not an error.

        Raises:
            EnvironmentFault: The reward itself failed (a user's function raised): never a reward of 0.
        """
        ...


@runtime_checkable
class Specified(Protocol):
    """What a reward may offer besides: its specification, and tests that hold under it."""

    def spec(self) -> Mapping[str, Any]:
        """JSON-ready; a file of it, given as option `spec`, makes the same reward."""
        ...

    def cases(self) -> Sequence[Case]:
        """Built-in tests, then those of the specification's file."""
        ...
