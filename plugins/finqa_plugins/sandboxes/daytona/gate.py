"""The turnstile before every request that makes a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from finqa_cli.errors import FinqaError
from finqa_plugins.sandboxes.daytona.window import SlidingWindow

REFUSAL_S = 5.0
"""Seconds for which a refusal that concerns everyone (a wrong key, a full quota) is passed on without asking again."""


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
