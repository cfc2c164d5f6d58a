"""Starting boxes: many at once, again after failures, rarely after refusals."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

from finqa_cli.contracts import Sandbox
from finqa_cli.errors import EpisodeError

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
REFUSED_PAUSE_S = 30.0
STOP_PATIENCE_S = 15.0
FAILURES_TO_GIVE_UP = 3


class Starts:
    """The starts of one pool.

    A start that failed with an EpisodeError is tried again after a pause that grows with each failure in a row. Any
    other error is a *refusal* (a key, a quota, a missing image): it will meet every start, so those that have not
    begun are held back, and one after the other asks again every REFUSED_PAUSE_S seconds. A start in place of a box
    that ran is never held back: what the provider granted to the dead box is free again.
    """

    def __init__(
        self,
        launch: Callable[[], Awaitable[Sandbox]],
        *,
        at_once: int,
        on_failure: Callable[[Exception], None],
        on_change: Callable[[], None],
    ) -> None:
        """`on_failure` hears each failed start; `on_change` is called when a start ended without a box."""
        self._launch = launch
        self._turns = asyncio.Semaphore(at_once)
        self._asking_again = asyncio.Lock()
        self._on_failure = on_failure
        self._on_change = on_change
        self._running: set[asyncio.Event] = set()
        self._pausing: deque[asyncio.Future[None]] = deque()
        self._endings: set[asyncio.Task[None]] = set()
        self._failures_in_a_row = 0
        self._last_failure: Exception | None = None
        self.refusal: Exception | None = None

    @property
    def running(self) -> int:
        """Starts that run or wait their turn, not those that pause after a failure or are held back."""
        return len(self._running)

    @property
    def failure(self) -> Exception | None:
        """A refusal, or the last of several failures in a row: reasons to give up without a box. Else None."""
        if self.refusal is not None:
            return self.refusal
        return self._last_failure if self._failures_in_a_row >= FAILURES_TO_GIVE_UP else None

    async def box(self, *, instead_of: Sandbox | None, failures: int, spread: float) -> Sandbox:
        """Tries until a box runs.

        Args:
            instead_of: A dead box, which is ended first: there is room for one only.
            failures: Failures in a row before this call; each makes the first pause longer, 0 means no pause.
            spread: 0 to 1, different for each caller: keeps those that failed together from trying again together.
        """
        while True:
            await self._pause(failures, spread)
            if self.refusal is None or instead_of is not None:
                box = await self._try(instead_of)
            else:
                box = await self._ask_again()
            if box is not None:
                return box
            self._on_change()
            instead_of = None
            failures = 0 if self.refusal is not None else failures + 1

    def hurry(self) -> None:
        """Ends the pause of the start that has paused longest."""
        while self._pausing:
            pause = self._pausing.popleft()
            if not pause.done():
                pause.set_result(None)
                return

    async def settled(self) -> None:
        """Waits for the starts that run now, however they end."""
        for ended in list(self._running):
            await ended.wait()

    async def close(self) -> None:
        """Stops waiting for dead boxes to end; the provider's close ends them."""
        for ending in self._endings:
            ending.cancel()
        await asyncio.gather(*self._endings, return_exceptions=True)

    async def _try(self, instead_of: Sandbox | None, *, asking: bool = False) -> Sandbox | None:
        ended = asyncio.Event()
        self._running.add(ended)
        try:
            if instead_of is not None:
                await self._end(instead_of)
            async with self._turns:
                if self.refusal is not None and instead_of is None and not asking:
                    return None  # another start was refused while this one waited its turn
                box = await self._launch()
        except Exception as error:  # nobody awaits the start: whatever it is, those who wait for a box must hear of it
            self._note(error)
            return None
        finally:
            self._running.discard(ended)
            ended.set()
        self._failures_in_a_row = 0
        return box

    async def _ask_again(self) -> Sandbox | None:
        async with self._asking_again:
            if self.refusal is None:
                return None  # whoever asked before has found the door open
            await asyncio.sleep(REFUSED_PAUSE_S)
            box = await self._try(None, asking=True)
            if box is not None:
                self.refusal = None
            return box

    def _note(self, error: Exception) -> None:
        self._failures_in_a_row += 1
        self._last_failure = error
        if not isinstance(error, EpisodeError):
            self.refusal = error
        self._on_failure(error)

    async def _pause(self, failures: int, spread: float) -> None:
        if not failures:
            return
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10))
        pause: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pausing.append(pause)
        try:
            await asyncio.wait({pause}, timeout=longest * (0.5 + spread / 2))
        finally:
            if not pause.done():
                self._pausing.remove(pause)

    async def _end(self, box: Sandbox) -> None:
        """Waits for the end of a dead box, for a while: one that cannot be ended must not cost a place for ever."""
        ending = asyncio.create_task(_stop(box))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        await asyncio.wait({ending}, timeout=STOP_PATIENCE_S)


async def _stop(box: Sandbox) -> None:
    try:
        await box.stop()
    except Exception as error:  # it is being replaced because it is broken; the provider's close ends what is left
        log.warning("sandbox did not stop", sandbox=box.id, reason=str(error))
