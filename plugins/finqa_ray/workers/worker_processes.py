"""The processes of rollout workers, as the controller sees them."""

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
            LostWorkerError: The process or its machine has ended, or cannot be reached. The process is not called
                again.
            FinqaError: The method raised it, or the method raised another exception, which the message describes.
        """

    @abstractmethod
    def kill(self) -> None:
        """End the process at once. Idempotent, never raises."""


class WorkerProcesses(ABC):
    """The machines on which worker processes run.

    Attributes:
        here: Address of this machine, to compare with `WorkerProcess.node`; known after `open`.
    """

    here: str = ""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and reserve a processor core for each process.

        Raises:
            ConfigError: The machines do not have enough free cores.
            ServiceUnavailableError: The machines cannot be reached.
        """

    @abstractmethod
    async def start(self, number: int, make: Callable[[], object]) -> WorkerProcess:
        """Start process `number` and make its object there; wait until there is room.

        Args:
            number: Number of the process, from 0. Only one process with a number runs at a time.
            make: Makes the object. It is pickled.

        Raises:
            ConfigError: The machine has another version of finqa.
            LostWorkerError: The process ended while it started.
        """

    @abstractmethod
    async def close(self) -> None:
        """End all processes and the connection. Idempotent."""
