"""Keeps requests within the server's limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from finqa_cli.contracts import uncounted


class Pace:
    """At most so many units in any minute, evenly spread: bursts are what limits of hosted models punish."""

    def __init__(self, per_minute: int | None, now: Callable[[], float] = time.monotonic) -> None:
        """None for no limit."""
        self._seconds_each = 60.0 / per_minute if per_minute else 0.0
        self._now = now
        self._next = 0.0

    def reserve(self, units: int) -> float:
        """Takes the next free place; gives the seconds until it."""
        now = self._now()
        begin = max(now, self._next)
        self._next = begin + units * self._seconds_each
        return begin - now

    def correct(self, units: int) -> None:
        """A reservation was that much too small (or, below 0, too large)."""
        self._next += units * self._seconds_each


class Gate:
    """Where requests wait for their turn: places, paces, and pauses that the server asked for."""

    def __init__(
        self, *, places: int, requests_per_minute: int | None = None, tokens_per_minute: int | None = None
    ) -> None:
        self._places = asyncio.Semaphore(places)
        self._requests = Pace(requests_per_minute)
        self._tokens = Pace(tokens_per_minute)
        self._paused_until = 0.0

    @asynccontextmanager
    async def place(self, tokens: int) -> AsyncIterator[None]:
        """A place for one request of about so many tokens, once it may start."""
        with uncounted.get()():  # the limits are not the policy's doing
            await self._places.acquire()
        try:
            begins = time.monotonic() + max(self._requests.reserve(1), self._tokens.reserve(tokens))
            try:
                with uncounted.get()():
                    while (left := max(begins, self._paused_until) - time.monotonic()) > 0:  # noqa: ASYNC110  a pause may grow
                        await asyncio.sleep(left)
            except asyncio.CancelledError:
                self._requests.correct(-1)
                self._tokens.correct(-tokens)
                raise
            yield
        finally:
            self._places.release()

    def pause(self, seconds: float) -> None:
        """No request starts for so long: a limit that one request met is met by all."""
        self._paused_until = max(self._paused_until, time.monotonic() + seconds)

    def used(self, tokens: int, reserved: int) -> None:
        """What a request really took of the tokens."""
        self._tokens.correct(tokens - reserved)
