"""Environments: what asks tasks and judges attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from finqa_cli.contracts.reward import Reward
from finqa_cli.contracts.sandbox_provider import Sandbox
from finqa_cli.types import (
    AssistantTurn,
    DataInfo,
    Message,
    Observation,
    Prompt,
    Rewards,
    SandboxSpec,
    Snapshot,
    Task,
    ToolCall,
    Trajectory,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentContext:
    """What wiring tells an environment.

    Attributes:
        snapshot: The compiled data, or None for an environment that reads files or brings its own.
        data: The file or folder to read tasks from, or None for the environment's embedded ones.
        reward: What judges instead of the environment's own verdict, or None.
        max_turns: Tool calls after which an episode ends.
    """

    snapshot: Snapshot | None
    data: Path | None = None
    reward: Reward | None = None
    max_turns: int = 20


@runtime_checkable
class Session(Protocol):
    """One episode's private connection, with tools. Calls are strictly serial."""

    def prompt(self) -> Prompt:
        """How the episode opens."""
        ...

    async def step(self, call: ToolCall) -> Observation:
        """Carries out one tool call. A refused or malformed call is an observation with `is_error`, not an exception.

        Raises:
            SandboxError: The box died or does not answer; the session is unusable.
            EnvironmentFault: The server answered outside its protocol; the session is unusable.
        """
        ...

    async def grade(self) -> Rewards:
        """The verdict; for an episode that ended without an answer it is the environment's verdict on no answer.

        Raises:
            SandboxError: The connection is lost before the verdict is certain.
            EnvironmentFault: The server could not grade. This is never a reward of 0.
        """
        ...

    async def close(self) -> None:
        """Frees the connection. Idempotent, never raises."""
        ...


@runtime_checkable
class TextSession(Protocol):
    """One episode without tools: each turn of the policy is a text, and the environment answers it."""

    def prompt(self) -> Prompt:
        """How the episode opens; it offers no tools."""
        ...

    async def reply(self, text: str) -> Observation:
        """Takes what the policy wrote. Raises as `Session.step` does."""
        ...

    async def grade(self) -> Rewards:
        """As `Session.grade`."""
        ...

    async def close(self) -> None:
        """Frees what the episode holds. Idempotent, never raises."""
        ...


@runtime_checkable
class Demonstrator(Protocol):
    """What an environment may offer besides: gold solutions, for demonstrations and to test rewards against."""

    def demonstrate(self, messages: Sequence[Message]) -> AssistantTurn | None:
        """What a perfect policy says next in this conversation; None when the environment knows no solution."""
        ...


@runtime_checkable
class Opens(Protocol):
    """What an environment may offer besides: how episodes begin, for whoever counts tokens before there is a box."""

    def opening(self, task: Task) -> Prompt:
        """What `prompt()` of a session of this task says."""
        ...


@runtime_checkable
class Measures(Protocol):
    """What an environment may offer besides: figures of its own about a set of episodes, beside accuracy."""

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
        """Numbers by name; a group of numbers may be a mapping of its own. JSON-ready and finite. Pure.

        Args:
            trajectories: Of an evaluation, or of an iteration of training; faulted ones are among them.
        """
        ...


@runtime_checkable
class Environment(Protocol):
    """Constructed as `Environment(config, context)`."""

    def data(self) -> DataInfo:
        """Where the tasks come from, and what they may be used for."""
        ...

    def sandbox_spec(self) -> SandboxSpec | None:
        """What box the sessions need; None when they run in this process."""
        ...

    def splits(self) -> Sequence[str]:
        """Names of the splits, in the order in which a person would list them."""
        ...

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split in a stable order.

        Raises:
            DataError: There is no such split, or its file is damaged.
        """
        ...

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> Session | TextSession:
        """Starts an episode of exactly this task.

        Raises:
            SandboxError: The box cannot be reached.
            EnvironmentFault: The server does not know the task or broke its protocol.
        """
        ...
