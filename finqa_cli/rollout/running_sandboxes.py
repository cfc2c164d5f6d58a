"""Running boxes, and the free places for sessions on them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from finqa_cli.contracts import Sandbox
from finqa_cli.errors import SandboxError


class Box:
    """A running sandbox of the pool.

    Attributes:
        sandbox: What the provider started.
        sessions: Places on it that are taken.
        offered: True while new sessions may come to it.
        proved: True once a session on it ended without a fault.
        strikes: Signs since its last good health check that it is dead.
        blamed: True once the breaker was told of a fault since then.
        faulted: True from a fault of a session on it to the next check.
        relapses: Faults in a row after which it was found well, as its only session ended.
        look: Set to have it checked now.
        checked_at: When its last check ended, in the event loop's seconds; minus infinity before the first.
        spent: True once its only session ended, where each session is to have a fresh box.
        lost: Why it is of no use any more; empty while it is.
    """

    __slots__ = (
        "_cuts",
        "blamed",
        "checked_at",
        "faulted",
        "look",
        "lost",
        "offered",
        "proved",
        "relapses",
        "sandbox",
        "sessions",
        "spent",
        "strikes",
    )

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.sessions = 0
        self.offered = False
        self.proved = False
        self.strikes = 0
        self.blamed = False
        self.faulted = False
        self.relapses = 0
        self.look = asyncio.Event()
        self.checked_at = float("-inf")
        self.spent = False
        self.lost = ""
        self._cuts: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Sandbox]:
        """The sandbox for this block, which is cut short, whatever it awaits, when the box is lost.

        Raises:
            SandboxError: The box was lost, before the block or in it.
        """
        if self.lost:
            raise SandboxError(self.lost)
        # A timeout without a deadline is the standard library's way to cancel a block and not the task around it, and
        # to let a cancellation from outside win.
        try:
            async with asyncio.timeout(None) as cut:
                self._cuts.add(cut)
                try:
                    yield self.sandbox
                finally:
                    self._cuts.discard(cut)
        except TimeoutError:
            if cut.expired():
                raise SandboxError(self.lost) from None
            raise

    def lose(self, reason: str) -> None:
        """Cuts every block that holds it."""
        self.lost = reason
        now = asyncio.get_running_loop().time()
        for cut in self._cuts:
            cut.reschedule(now)
        self._cuts.clear()


class Places:
    """Room for `per_box` sessions on each box. The least loaded box is next; who waits is served in order of arrival.

    Taking and giving back cost the same for any number of boxes. Whenever somebody waits, no place is free.
    """

    def __init__(self, per_box: int) -> None:
        self._by_load: list[OrderedDict[Box, None]] = [OrderedDict() for _ in range(per_box)]
        self._line: OrderedDict[asyncio.Future[Box | Exception], None] = OrderedDict()

    @property
    def per_box(self) -> int:
        """Places on each box."""
        return len(self._by_load)

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._line)

    def offer(self, box: Box) -> None:
        """Lets sessions come to a box. Idempotent."""
        if not box.offered:
            box.offered = True
            self._list(box)
            self._serve()

    def withdraw(self, box: Box) -> None:
        """Lets no new session come to a box; those on it stay. Idempotent."""
        if box.offered:
            self._unlist(box)
            box.offered = False

    def take(self) -> Box | None:
        """A place on the least loaded box; None when none is free."""
        for boxes in self._by_load:
            if boxes:
                box, _ = boxes.popitem(last=False)
                box.sessions += 1
                self._list(box)
                return box
        return None

    def release(self, box: Box) -> None:
        """Gives a place back."""
        self._unlist(box)
        box.sessions -= 1
        self._list(box)
        self._serve()

    async def wait(self) -> Box:
        """Stands in line for a place.

        Raises:
            Exception: What `dismiss` was given.
        """
        turn: asyncio.Future[Box | Exception] = asyncio.get_running_loop().create_future()
        self._line[turn] = None
        try:
            outcome = await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and isinstance(box := turn.result(), Box):
                self.release(box)  # the cancellation came after the place: it goes to the next in line
            raise
        finally:
            self._line.pop(turn, None)
        if isinstance(outcome, Exception):
            raise outcome.with_traceback(None)  # one object for all in line: each with a traceback of its own
        return outcome

    def dismiss(self, reason: Exception) -> None:
        """Sends everybody in line away with a reason."""
        while self._line:
            turn, _ = self._line.popitem(last=False)
            if not turn.done():
                turn.set_result(reason)

    def _serve(self) -> None:
        while self._line:
            turn = next(iter(self._line))
            if not turn.done():  # else it was cancelled and is about to leave the line
                box = self.take()
                if box is None:
                    return
                turn.set_result(box)
            del self._line[turn]

    def _list(self, box: Box) -> None:
        if box.offered and box.sessions < len(self._by_load):
            self._by_load[box.sessions][box] = None

    def _unlist(self, box: Box) -> None:
        if box.offered and box.sessions < len(self._by_load):
            del self._by_load[box.sessions][box]
