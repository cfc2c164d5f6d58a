"""The gate for all requests that create a sandbox: rate limit, pauses and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from finqa_cli.contracts import AccountQuota, Grant
from finqa_cli.errors import FinqaError

REFUSAL_S = 5.0
"""Seconds for which a refusal that concerns all starts (wrong key, full quota) is repeated without a request."""
GRANT_S = 1.0
"""Seconds within which a grant must arrive: the quota assumes that the create is sent at once."""
LONGEST_WAIT_S = 1.0
"""Longest wait before the next request to the quota: replies to other processes may have freed a place."""


class CreateGate:
    """Lets requests through first come first served, at the pace of the account's quota."""

    def __init__(self, open_quota: Callable[[], AccountQuota]) -> None:
        """`open_quota` is called with the first request."""
        self._open_quota = open_quota
        self._quota: AccountQuota | None = None
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._refusal: FinqaError | None = None
        self._refused_until = 0.0

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Waits for a place, and holds it while the block runs, which sends one request.

        Raises:
            FinqaError: The error given to `refuse`, or the quota cannot be used.
        """
        quota = self._opened()
        async with self._turn:
            while (ticket := await self._try(quota)) is None:
                pass
        try:
            yield
        finally:
            quota.end(ticket)
            self._changed.set()

    def pause(self, seconds: float, limit: int | None = None) -> None:
        """Send nothing for `seconds`, because there were too many requests; keep the service's `limit` from now on."""
        self._opened().pause(seconds, limit)

    def refuse(self, error: FinqaError, seconds: float = REFUSAL_S) -> None:
        """Raise this error in all waiting calls of `place`, and in those within `seconds`, instead of a request."""
        self._refusal, self._refused_until = error, time.monotonic() + seconds
        self._changed.set()

    def close(self) -> None:
        """Stops using the quota. Idempotent."""
        if self._quota is not None:
            self._quota.close()

    def _opened(self) -> AccountQuota:
        if self._quota is None:
            self._quota = self._open_quota()
        return self._quota

    async def _try(self, quota: AccountQuota) -> int | None:
        """The ticket of a place; None if there was none yet, or if it came too late or after a refusal."""
        self._check()
        self._changed.clear()
        asked = time.monotonic()
        grant = await _take(quota)
        if grant.wait_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(grant.wait_s, LONGEST_WAIT_S)):
                    await self._changed.wait()
            return None
        if self._is_refused() or time.monotonic() - asked > GRANT_S:
            quota.end(grant.ticket, sent=False)
            return None
        return grant.ticket

    def _is_refused(self) -> bool:
        return self._refusal is not None and time.monotonic() < self._refused_until

    def _check(self) -> None:
        if self._refusal is not None and self._is_refused():
            raise type(self._refusal)(self._refusal.message, remedy=self._refusal.remedy)


async def _take(quota: AccountQuota) -> Grant:
    """A grant; if it arrives after a cancellation, it is given back."""
    taking = asyncio.ensure_future(quota.take())
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(lambda taken: _give_back(quota, taken))
        raise


def _give_back(quota: AccountQuota, taken: asyncio.Future[Grant]) -> None:
    if not taken.cancelled() and taken.exception() is None and taken.result().wait_s == 0:
        quota.end(taken.result().ticket, sent=False)
