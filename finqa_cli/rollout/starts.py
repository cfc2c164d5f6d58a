"""Starts of sandboxes: many at once, repeated after failures, and one at a time after refusals."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

import structlog

from finqa_cli.backoff import Backoff
from finqa_cli.contracts import Sandbox
from finqa_cli.errors import EpisodeError
from finqa_cli.rollout.pooled_sandboxes import PooledSandbox

log = structlog.get_logger(__name__)

BACKOFF = Backoff(first_s=0.5, longest_s=60.0)
REFUSED_PAUSE_S = 30.0
STOP_PATIENCE_S = 15.0
"""Seconds to wait until a lost sandbox has stopped before its replacement starts."""

FAILURES_TO_STOP = 3
"""Failures in a row after which sessions no longer wait for a sandbox."""


class Starts:
    """The starts of one pool.

    A start that failed with an EpisodeError is tried again after a pause that grows with each failure in a row. Any
    other error is a *refusal* (a key, a quota, a missing image). It would affect every start, so starts that have not
    begun are held back, and one of them is tried every REFUSED_PAUSE_S seconds. A start that replaces a sandbox is
    never held back, because the quota of the old sandbox is free again.

    Attributes:
        refusal: The last refusal; None after a start that succeeded.
    """

    def __init__(
        self,
        launch: Callable[[], Awaitable[Sandbox]],
        *,
        at_once: int,
        on_failure: Callable[[PooledSandbox, Exception, bool], None],
        on_change: Callable[[], None],
    ) -> None:
        """Prepare the starts.

        Args:
            launch: Starts one sandbox.
            at_once: Most starts at once.
            on_failure: Called for each failed start. Its third argument is False if the same exception object already
                failed another start while this one was in progress: many sandboxes may wait for one server process,
                whose failure counts once.
            on_change: Called when a start ended without a sandbox.
        """
        self._launch = launch
        self._turns = asyncio.Semaphore(at_once)
        self._retry_refused = asyncio.Lock()
        self._on_failure = on_failure
        self._on_change = on_change
        self._running: set[asyncio.Event] = set()
        self._pausing: deque[asyncio.Future[None]] = deque()
        self._endings: set[asyncio.Task[None]] = set()
        self._failures_in_a_row = 0
        self._last_failure: Exception | None = None
        self._launches = 0
        self._failures: WeakKeyDictionary[Exception, int] = WeakKeyDictionary()  # -> launches started before it
        self.refusal: Exception | None = None

    @property
    def running(self) -> int:
        """Number of starts in progress or waiting for a turn, without those that pause or are held back."""
        return len(self._running)

    @property
    def failure(self) -> Exception | None:
        """The refusal, or the last of `FAILURES_TO_STOP` failures in a row: reasons to stop waiting. None otherwise."""
        if self.refusal is not None:
            return self.refusal
        return self._last_failure if self._failures_in_a_row >= FAILURES_TO_STOP else None

    async def start(self, *, instead_of: PooledSandbox | None, failures: int, spread: float) -> PooledSandbox:
        """Try until a sandbox runs, and return it, still STARTING.

        Args:
            instead_of: A lost or spent sandbox, which is stopped first, because the two must not run at once.
            failures: Failures in a row before this call. Each makes the first pause longer; 0: no pause.
            spread: Number from 0 to 1, different for each caller, so that starts that failed together are not repeated
                together.
        """
        while True:
            await self._pause(failures, spread)
            if self.refusal is None or instead_of is not None:
                started = await self._try(instead_of)
            else:
                started = await self._try_after_refusal()
            if started is not None:
                return started
            self._on_change()
            instead_of = None
            failures = 0 if self.refusal is not None else failures + 1

    def hurry(self) -> None:
        """End the pause of the start that has paused the longest."""
        while self._pausing:
            pause = self._pausing.popleft()
            if not pause.done():
                pause.set_result(None)
                return

    async def settled(self) -> None:
        """Wait for the starts that run now, however they end."""
        for ended in list(self._running):
            await ended.wait()

    async def close(self) -> None:
        """Stop waiting for lost sandboxes to stop; the provider's close ends them."""
        for ending in self._endings:
            ending.cancel()
        await asyncio.gather(*self._endings, return_exceptions=True)

    async def _try(self, instead_of: PooledSandbox | None, *, after_refusal: bool = False) -> PooledSandbox | None:
        ended = asyncio.Event()
        self._running.add(ended)
        starting = PooledSandbox()
        number = 0
        try:
            if instead_of is not None:
                await self._stop(instead_of.sandbox)
            async with self._turns:
                if self.refusal is not None and instead_of is None and not after_refusal:
                    return None  # another start was refused while this one waited for its turn
                self._launches += 1
                number = self._launches
                starting.sandbox = await self._launch()
        except Exception as error:  # no caller awaits this start: `on_failure` passes the error to waiting sessions
            is_new = number > self._failures.get(error, 0)
            self._failures[error] = self._launches
            self._failures_in_a_row += is_new
            self._last_failure = error
            if not isinstance(error, EpisodeError):
                self.refusal = error
            self._on_failure(starting, error, is_new)
            return None
        finally:
            self._running.discard(ended)
            ended.set()
        self._failures_in_a_row = 0
        return starting

    async def _try_after_refusal(self) -> PooledSandbox | None:
        async with self._retry_refused:
            if self.refusal is None:
                return None  # an earlier try succeeded
            await asyncio.sleep(REFUSED_PAUSE_S)
            started = await self._try(None, after_refusal=True)
            if started is not None:
                self.refusal = None
            return started

    async def _pause(self, failures: int, spread: float) -> None:
        if not failures:
            return
        pause: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pausing.append(pause)
        try:
            await asyncio.wait({pause}, timeout=BACKOFF.pause_s(failures, spread))
        finally:
            if not pause.done():
                self._pausing.remove(pause)

    async def _stop(self, sandbox: Sandbox) -> None:
        """Stop a sandbox, and wait at most `STOP_PATIENCE_S`: it must not block its replacement forever."""
        ending = asyncio.create_task(_stop_safely(sandbox))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        await asyncio.wait({ending}, timeout=STOP_PATIENCE_S)


async def _stop_safely(sandbox: Sandbox) -> None:
    try:
        await sandbox.stop()
    except Exception as error:  # it is replaced in any case, and the provider's `close` ends what is left
        # Log: It is ended again at the end of the run.
        log.warning("sandbox did not stop", sandbox=sandbox.id, reason=str(error))
