"""The gate before every request that creates a sandbox: rate limit, pauses and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from finqa_cli.errors import FinqaError

SETTLE_S = 2.0
"""Seconds after which a request has been counted by the service, answered or not."""
_MARGIN_S = 0.001
REFUSAL_S = 5.0
"""Seconds for which a refusal that concerns everyone (a wrong key, a full quota) is passed on without asking again."""


class SlidingWindow:
    """At most `limit` requests in any `window_s` seconds, as the service counts them. Pure: the clock is an argument.

    The service counts a request at some moment between its sending and its reply. A place is therefore free again only
    `window_s` after the reply, so that no window of the service, however it is aligned and for all latencies,
    holds more than `limit`. A request without a reply is taken as counted `settle_s` after its sending: a sandbox that
    takes minutes to start must not hold its place for as long.
    """

    def __init__(self, limit: int, window_s: float, settle_s: float = SETTLE_S) -> None:
        self._limit = limit
        self._window_s = window_s
        self._settle_s = settle_s
        self._counted_by: dict[int, float] = {}
        self._next_ticket = 0
        self._paused_until = float("-inf")

    @property
    def limit(self) -> int:
        """Most requests in a window."""
        return self._limit

    def delay(self, now: float) -> float:
        """Seconds until the next request may go; 0.0 when it may go now. Later replies can only shorten it."""
        self._forget(now)
        excess = len(self._counted_by) - self._limit
        release = now
        if excess >= 0:
            release = sorted(self._counted_by.values())[excess] + self._window_s + _MARGIN_S
        return max(release - now, self._paused_until - now, 0.0)

    def begin(self, now: float) -> int:
        """A request goes out; the ticket is for `end`."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._counted_by[ticket] = now + self._settle_s
        return ticket

    def end(self, ticket: int, now: float) -> None:
        """Its reply is in, or will not come. A request that had already settled is unknown here, which is fine."""
        if ticket in self._counted_by:
            self._counted_by[ticket] = min(self._counted_by[ticket], now)

    def pause(self, until: float) -> None:
        """Nothing goes out before this moment."""
        self._paused_until = max(self._paused_until, until)

    def lower(self, limit: int) -> None:
        """The service named its own limit; never raises ours."""
        self._limit = max(1, min(self._limit, limit))

    def _forget(self, now: float) -> None:
        oldest = now - self._window_s
        self._counted_by = {ticket: at for ticket, at in self._counted_by.items() if at >= oldest}


class CreateGate:
    """Lets requests through first come first served, at the pace of a window, after the pauses that it asks for."""

    def __init__(self, window: SlidingWindow) -> None:
        self._window = window
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._refusal: FinqaError | None = None
        self._refused_until = 0.0

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Waits for a place and holds it while the request in the block runs.

        Raises:
            FinqaError: What `refuse` was told.
        """
        async with self._turn:
            while (delay := self._delay()) > 0:
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._changed.wait()
            ticket = self._window.begin(time.monotonic())
        try:
            yield
        finally:
            self._window.end(ticket, time.monotonic())
            self._changed.set()

    def pause(self, seconds: float, limit: int | None = None) -> None:
        """The service was asked too often: nothing goes out for so long, and its own limit is kept from now on."""
        self._window.pause(time.monotonic() + seconds)
        if limit is not None:
            self._window.lower(limit)

    def refuse(self, error: FinqaError, seconds: float = REFUSAL_S) -> None:
        """Everyone who waits, or comes within the time, gets this error instead of asking the service once more."""
        self._refusal, self._refused_until = error, time.monotonic() + seconds
        self._changed.set()

    def _delay(self) -> float:
        now = time.monotonic()
        if self._refusal is not None and now < self._refused_until:
            raise type(self._refusal)(self._refusal.message, remedy=self._refusal.remedy)
        return self._window.delay(now)
