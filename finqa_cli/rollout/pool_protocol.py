"""The public face of a pool of sandboxes: how to lease, its figures at a moment, and its events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from finqa_cli.contracts import Sandbox

Waiting = Callable[[], AbstractContextManager[None]]
"""A context in which an attempt waits for a sandbox: it releases its engine seat there."""

PoolListener = Callable[[str, Mapping[str, object]], None]
"""Receives each event's name and fields: small, without secrets, called in the event loop.

- `sandbox_ready`: sandbox, seconds
- `sandbox_failed`: reason, remedy
- `sandbox_lost`: sandbox, reason, sessions that were cut
- `sandbox_replaced`: sandbox, instead_of, seconds since the other one was lost
- `sandbox_spent`: sandbox, whose only session has ended where each session needs a fresh one
- `pool_reduced`: alive, size, reason, remedy
- `breaker_open`: reason, remedy
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """Figures of a pool at a moment. Sandboxes that are not starting, idle or leased wait for their next try.

    Attributes:
        size: Sandboxes that the pool tries to keep.
        starting: Sandboxes whose start runs or waits its turn.
        idle: Running sandboxes without a session.
        leased: Running sandboxes with a session or several.
        sessions_active: Sessions on running sandboxes.
        waiting: Leases that wait for a place.
        waits: Leases that had to wait, in all.
        waited_s: Seconds that they have waited together; those that still wait are not in it.
        lost: Sandboxes that ran and died, in all.
        replaced: Lost sandboxes in whose place another one has started.
        start_failures: Starts that failed, in all.
    """

    size: int = 0
    starting: int = 0
    idle: int = 0
    leased: int = 0
    sessions_active: int = 0
    waiting: int = 0
    waits: int = 0
    waited_s: float = 0.0
    lost: int = 0
    replaced: int = 0
    start_failures: int = 0

    @property
    def alive(self) -> int:
        """Number of running sandboxes."""
        return self.idle + self.leased


class Pool(Protocol):
    """Source of the sandboxes of attempts."""

    def lease(self, waiting: Waiting = nullcontext) -> AbstractAsyncContextManager[Sandbox | None]:
        """Yield a sandbox with a place for one session; None for environments that need no sandbox."""
        ...

    async def start(self) -> None:
        """Begin to start sandboxes, without waiting."""
        ...

    async def ready(self) -> None:
        """Wait until a lease can be had; raise what a lease would raise when none can."""
        ...

    async def settled(self) -> None:
        """Wait until every start that is running has succeeded or failed."""
        ...

    def stats(self) -> PoolStats:
        """Return the figures of this moment."""
        ...

    async def close(self) -> None:
        """End every sandbox."""
        ...


class NoSandboxes:
    """The pool of an environment whose sessions run in this process."""

    @asynccontextmanager
    async def lease(self, waiting: Waiting = nullcontext) -> AsyncIterator[Sandbox | None]:
        """Yield None: there is nothing to lease."""
        yield None

    async def start(self) -> None:
        """Do nothing: there is nothing to start."""

    async def ready(self) -> None:
        """Do nothing: there is nothing to wait for."""

    async def settled(self) -> None:
        """Do nothing: there is nothing to wait for."""

    def stats(self) -> PoolStats:
        """Return zeros."""
        return PoolStats()

    async def close(self) -> None:
        """Do nothing: there is nothing to end."""
