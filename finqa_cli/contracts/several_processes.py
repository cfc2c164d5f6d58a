"""Contracts of what processes share: those that play episodes for another, and the count of an account's creates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
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
    """The machines on which worker processes run.

    Attributes:
        here: Address of this machine, to compare with `WorkerProcess.node`; known after `open`.
    """

    here: str = ""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Answer to a request for one create.

    Attributes:
        wait_s: 0.0: the create may be sent now. Above: it may not; seconds until it is worth asking again.
        ticket: Number of the granted create, for `AccountQuota.end`.
    """

    wait_s: float
    ticket: int = -1


class AccountQuota(ABC):
    """Grants the creates of one account, at most a number in any window of time, to all processes that share it."""

    @abstractmethod
    async def take(self) -> Grant:
        """Request one create.

        Raises:
            StorageError: The file of the count cannot be read or written.
            ServiceUnavailableError: The process that counts cannot be reached.
        """

    @abstractmethod
    def end(self, ticket: int, *, sent: bool = True) -> None:
        """Report that the reply to a granted create arrived, or with `sent=False` that it was never sent.

        Returns at once. A report that is lost frees the place a little later.
        """

    @abstractmethod
    def pause(self, seconds: float, limit: int | None = None) -> None:
        """Stop all creates of the account for some seconds, as the service demanded. Returns at once.

        Args:
            seconds: From now.
            limit: The service's own limit; this process requests no more than that from now on.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop using the quota. Idempotent."""
