"""One replica of an engine set: what it serves, and whether it is to be used. It waits for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

import structlog

from finqa_cli.backoff import Backoff
from finqa_cli.contracts import TokenEngine
from finqa_cli.errors import EngineError, ServiceUnavailableError
from finqa_cli.types import PolicyVersion

log = structlog.get_logger(__name__)

FAILURES = 3
"""In a row, after which a replica is left out; requests that fail together count as one."""

BACKOFF = Backoff(first_s=10.0, longest_s=300.0)

ReplicaListener = Callable[[str, Mapping[str, Any]], None]
"""Called with an event's name and facts: `engine_left_out` (replica, reason) and `engine_back` (replica, version)."""


class Replica:
    """One engine of the set.

    Attributes:
        number: Its place in the set.
        engine: What it is.
        policy: What it is known to serve; None while that is uncertain.
        load: Requests under way.
        loading: Held while the engine loads a version.
    """

    def __init__(self, number: int, engine: TokenEngine, policy: PolicyVersion, on_event: ReplicaListener) -> None:
        self.number = number
        self.engine = engine
        self.policy: PolicyVersion | None = policy
        self.load = 0
        self.loading = asyncio.Lock()
        self._on_event = on_event
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
                log.warning("an engine replica is left out", replica=self.number, reason=str(reason))
                self._on_event("engine_left_out", {"replica": self.number, "reason": str(reason)})

    def away(self, reason: ServiceUnavailableError, now: float) -> None:
        """It could not be reached to load a version."""
        self.leave(reason, now, failures=max(self._failures + 1, FAILURES))

    def due(self) -> None:
        """It loaded a version while it was left out, so the next request may try it."""
        self._due = float("-inf")

    def succeeded(self) -> None:
        """It answered."""
        if not self.in_service:
            log.info("an engine replica is back", replica=self.number)
            self._on_event(
                "engine_back", {"replica": self.number, "version": self.policy.number if self.policy else None}
            )
        self._failures = 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """One request is under way."""
        self.load += 1
        try:
            yield
        finally:
            self.load -= 1


def is_away(error: object) -> TypeGuard[ServiceUnavailableError]:
    """Whether an engine says that it cannot be reached, and not only that it failed this time."""
    return isinstance(error, ServiceUnavailableError) and not isinstance(error, EngineError)
