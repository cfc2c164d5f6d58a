"""Contract of the count of an account's sandbox creates, which all processes share that use the account."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


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
