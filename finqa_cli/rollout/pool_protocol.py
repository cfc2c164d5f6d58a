"""What the rest of the product sees of a pool of sandboxes: how to lease, its state at a moment, and its events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from finqa_cli.contracts import Sandbox

Waiting = Callable[[], AbstractContextManager[None]]
"""A context that an attempt spends its waiting in: it gives its engine seat up there."""

PoolListener = Callable[[str, Mapping[str, object]], None]
"""Hears each event's name and fields: small, without secrets, called in the event loop.

- `sandbox_ready`: sandbox, seconds
- `sandbox_failed`: reason, remedy
- `sandbox_lost`: sandbox, reason, sessions that were cut
- `sandbox_replaced`: sandbox, instead_of, seconds since the other one was lost
- `sandbox_spent`: sandbox, which was ended after its only session because each is to have a fresh one
- `pool_reduced`: alive, size, reason, remedy
- `breaker_open`: reason, remedy
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """A pool at a moment. Boxes that are none of starting, idle and leased wait for their next try.

    Attributes:
        size: Boxes that the pool tries to have.
        starting: Boxes whose start runs or waits its turn.
        idle: Running boxes without a session.
        leased: Running boxes with a session or several.
        sessions_active: Sessions on running boxes.
        waiting: Leases that wait for a place.
        waits: Leases that had to wait, in all.
        waited_s: Seconds that they have waited together; those that still wait are not in it.
        lost: Boxes that ran and died, in all.
        replaced: Those of them in whose place another one came up.
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
        """Running boxes."""
        return self.idle + self.leased


class Pool(Protocol):
    """Where attempts get their box from."""

    def lease(self, waiting: Waiting = nullcontext) -> AbstractAsyncContextManager[Sandbox | None]:
        """A place for one session; None for environments that need no box."""
        ...

    async def start(self) -> None:
        """Begins to fill, without waiting."""
        ...

    async def ready(self) -> None:
        """Waits until a lease can be had; raises what a lease would raise when none can."""
        ...

    async def settled(self) -> None:
        """Waits until every start that is running has succeeded or failed."""
        ...

    def stats(self) -> PoolStats:
        """The state now."""
        ...

    async def close(self) -> None:
        """Ends every box."""
        ...


class NoSandboxes:
    """The pool of an environment whose sessions run in this process."""

    @asynccontextmanager
    async def lease(self, waiting: Waiting = nullcontext) -> AsyncIterator[Sandbox | None]:
        """Nothing to lease."""
        yield None

    async def start(self) -> None:
        """Nothing to fill."""

    async def ready(self) -> None:
        """Nothing to wait for."""

    async def settled(self) -> None:
        """Nothing to wait for."""

    def stats(self) -> PoolStats:
        """No boxes."""
        return PoolStats()

    async def close(self) -> None:
        """Nothing to end."""
