"""What a code environment takes from its task source: the problems, and how a reply to one is judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.types import DataInfo, Observation, Prompt, Rewards, Task, Trajectory


class CodeProblem(Protocol):
    """A problem of any source."""

    @property
    def id(self) -> str:
        """Unique in its data; the id of its task."""
        ...


Problem = TypeVar("Problem", bound=CodeProblem)
Verdict = TypeVar("Verdict")


class TaskSource(ABC, Generic[Problem, Verdict]):
    """Problems by split, and the judgement of replies to them.

    Attributes:
        info: Where the problems come from.
        by_split: Problems by split, in the order of the splits; no split is empty.
        attempts: Replies that one episode may try.
    """

    def __init__(self, info: DataInfo, by_split: Mapping[str, Sequence[Problem]], *, attempts: int) -> None:
        self.info = info
        self.by_split = by_split
        self.attempts = attempts

    @abstractmethod
    def task(self, problem: Problem, split: str) -> Task:
        """Return the task of a problem."""

    @abstractmethod
    def opening(self, problem: Problem) -> Prompt:
        """Return the prompt of a problem."""

    async def prepare(self, problem: Problem, sandbox: ExecutingSandbox) -> None:
        """Prepare what the judgement of a problem needs, before its first episode.

        Raises:
            SandboxError: The sandbox failed.
            DataError: The problem's own tests or reference fail.
        """

    @abstractmethod
    async def judge(self, problem: Problem, text: str, sandbox: ExecutingSandbox) -> Verdict:
        """Judge a reply by executing it.

        Raises:
            SandboxError: The sandbox failed: there is no verdict.
        """

    @abstractmethod
    def feedback(self, problem: Problem, verdict: Verdict) -> Observation:
        """Return what the author of a reply reads; `done` when no further attempt is wanted."""

    @abstractmethod
    def rewards(self, task: Task, problem: Problem, replies: Sequence[str], verdict: Verdict | None) -> Rewards:
        """Return the verdict on an episode from its replies and the judgement of the last one, None without a reply.

        Raises:
            EnvironmentFault: The configured reward failed.
        """

    @abstractmethod
    def solution(self, problem: Problem, attempt: int) -> str:
        """Return the reply that demonstrates a solution at an attempt, counted from 1; empty when there is none."""

    @abstractmethod
    def measure(self, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
        """Compute the figures of a set of episodes; see `Environment.measure`."""
