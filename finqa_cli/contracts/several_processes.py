"""Contracts between processes: worker processes that play episodes, and the shared count of an account's creates."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Answer to a request for one create.

    Attributes:
        wait_s: 0.0: the create may be sent now. Above 0.0: it may not; seconds to wait before the next request.
        ticket: Number of the granted create, for `AccountQuota.end`; -1 if it was not granted.
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
        """Report that the reply to a granted create arrived, or with `sent=False` that the create was never sent.

        Returns at once. If a report is lost, the place becomes free a little later.
        """

    @abstractmethod
    def pause(self, seconds: float, limit: int | None = None) -> None:
        """Stop all creates of the account for some seconds, as the service demanded. Returns at once.

        Args:
            seconds: Length of the pause from now, in seconds.
            limit: Creates per window that the service itself allows; this process requests no more from now on.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop using the quota. Idempotent."""
