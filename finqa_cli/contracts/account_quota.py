"""The count of an account's creates that several processes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


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
