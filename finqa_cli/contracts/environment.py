"""Environments: what asks tasks and judges attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from finqa_cli.contracts.sandbox import Sandbox
from finqa_cli.types import Observation, Prompt, Rewards, SandboxSpec, Snapshot, Task, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentContext:
    """What wiring tells an environment.

    Attributes:
        snapshot: The compiled data, or None for an environment that brings its own.
        max_turns: Tool calls after which an episode ends.
    """

    snapshot: Snapshot | None
    max_turns: int = 20


@runtime_checkable
class Session(Protocol):
    """One episode's private connection. Calls are strictly serial."""

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
            EnvironmentFault: The server could not grade. This is never a reward of 0.
        """
        ...

    async def close(self) -> None:
        """Frees the connection. Idempotent, never raises."""
        ...


@runtime_checkable
class Environment(Protocol):
    """Constructed as `Environment(config, context)`."""

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

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> Session:
        """Starts an episode of exactly this task.

        Raises:
            SandboxError: The box cannot be reached.
            EnvironmentFault: The server does not know the task or broke its protocol.
        """
        ...
