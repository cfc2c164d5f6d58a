"""When a replica that fails is left out, and when it is tried again. The caller supplies the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard

import structlog

from finqa_cli.backoff import Backoff
from finqa_cli.errors import EngineError, ServiceUnavailableError

log = structlog.get_logger(__name__)

FAILURES = 3
"""In a row, after which a replica is left out; requests that fail together count as one."""

BACKOFF = Backoff(first_s=10.0, longest_s=300.0)


class ReplicaHealth:
    """Failures in a row of one replica, and its load.

    Attributes:
        number: Its place among the replicas.
        load: Requests in progress.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.load = 0
        self._failures = 0
        self._failed_at = self._due = float("-inf")

    @property
    def in_service(self) -> bool:
        """False from its last failure in a row to its next success."""
        return self._failures < FAILURES

    def usable(self, now: float) -> bool:
        """In service, or due for a trial with one request."""
        return self.in_service or (now >= self._due and not self.load)

    def failed(self, error: Exception, *, began: float, now: float) -> None:
        """A request that began then failed now. One death takes many requests with it and counts once."""
        if began < self._failed_at:
            return
        self.leave(error, now, failures=max(self._failures + 1, FAILURES if is_away(error) else 0))

    def leave(self, reason: BaseException, now: float, *, failures: int = FAILURES) -> None:
        """Counts so many failures in a row, and pauses longer after each one above the limit."""
        told = self.in_service
        self._failures, self._failed_at = failures, now
        if not self.in_service:
            self._due = now + BACKOFF.pause_s(failures - FAILURES + 1)
            if told:
                log.warning("an engine replica is not used", replica=self.number, reason=str(reason))
                self._on_left(reason)

    def away(self, reason: ServiceUnavailableError, now: float) -> None:
        """It could not be reached to load a version."""
        self.leave(reason, now, failures=max(self._failures + 1, FAILURES))

    def due(self) -> None:
        """It loaded a version while it was left out, so the next request may try it."""
        self._due = float("-inf")

    def succeeded(self) -> None:
        """It answered."""
        if not self.in_service:
            log.info("an engine replica is available again", replica=self.number)
            self._on_back()
        self._failures = 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """One request is in progress."""
        self.load += 1
        try:
            yield
        finally:
            self.load -= 1

    def _on_left(self, reason: BaseException) -> None: ...

    def _on_back(self) -> None: ...


def is_away(error: object) -> TypeGuard[ServiceUnavailableError]:
    """Whether an engine says that it cannot be reached, and not only that it failed this time."""
    return isinstance(error, ServiceUnavailableError) and not isinstance(error, EngineError)
