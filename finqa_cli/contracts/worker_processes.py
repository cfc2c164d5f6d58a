"""Processes on other machines that play episodes for this one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class WorkerProcess(ABC):
    """One process with one object in it, whose methods are coroutines that share an event loop.

    Attributes:
        node: Address of its machine.
    """

    node: str = ""

    @abstractmethod
    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object. Calls to one process may overlap.

        Raises:
            LostWorkerError: The process or its machine is gone, or cannot be reached. It is never called again.
            FinqaError: The method raised it, or something else, which the message describes.
        """

    @abstractmethod
    def kill(self) -> None:
        """End the process at once. Idempotent, never raises."""


class WorkerProcesses(ABC):
    """The machines on which worker processes run."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and reserve a processor core for each process.

        Raises:
            ConfigError: There is no room for them.
            ServiceUnavailableError: The machines cannot be reached.
        """

    @abstractmethod
    async def start(self, number: int, make: Callable[[], object]) -> WorkerProcess:
        """Start process `number` and make its object there; waits until there is room.

        Args:
            number: From 0; one process of a number runs at a time.
            make: Makes the object. It is pickled.

        Raises:
            ConfigError: The machine has another finqa.
            LostWorkerError: The process ended while it started.
        """

    @abstractmethod
    async def close(self) -> None:
        """End all processes and the connection. Idempotent."""
