"""Health checks of running boxes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress

import structlog

from finqa_cli.rollout.running_sandboxes import Box, Places

log = structlog.get_logger(__name__)

STRIKES = 2
RELAPSES = 3
SECONDS_TO_SECOND_CHECK = 1.0
CHECK_TIMEOUT_S = 15.0
NEIGHBOURS = 8
SECONDS_BETWEEN_CHECKS = 1.0


class HealthChecks:
    """Looks at each box every `every_s` seconds (0: never by itself), and at once when something speaks against it.

    Two strikes in a row and a box is lost; it gets no new session after the first. A strike is a check without an
    answer and a session that ended in a fault. Boxes often die together, with a server or a machine that they share, so
    each missing answer has a few neighbours checked too, and counts as a strike against those on which nobody plays:
    the news of a shared death spreads over all boxes in a few steps, while a single one costs a few checks.

    A box may answer every check and fail every session. It is free more often than any other, so more and more sessions
    come to it. After the third that fails in a row, with nobody else playing there, it is lost too.
    """

    def __init__(self, places: Places, *, every_s: float, size: int) -> None:
        self._places = places
        self._every_s = every_s
        # A frozen server holds a check for many seconds; with a quarter of them frozen still nobody waits.
        self._turns = asyncio.Semaphore(max(32, size // 4))
        self._resting: OrderedDict[Box, None] = OrderedDict()  # between two checks, the longest first

    async def watch(self, box: Box, spread: float) -> str:
        """Checks a box until it is lost, and says why it is; empty when it is spent instead.

        Args:
            box: Whom sessions may come to.
            spread: Above 0 up to 1, different for each box: its share of the interval before the first check.
        """
        pause = self._every_s * spread
        self._resting[box] = None
        self._resting.move_to_end(box, last=False)
        try:
            while True:
                await _rest(box, pause)
                self._resting.pop(box, None)
                if box.spent:
                    return ""
                answers = await self._answers(box)
                box.checked_at = asyncio.get_running_loop().time()
                if answers:
                    pause = self._every_s
                    if not box.look.is_set():  # else a fault came in while this check was under way
                        if _relapsed(box):
                            return f"Sandbox {box.sandbox.id} was lost: it answers, but session after session fails."
                        box.strikes, box.blamed = 0, False
                        self._places.offer(box)
                else:
                    pause = SECONDS_TO_SECOND_CHECK
                    self._strike(box)
                    self._check_neighbours()
                    if box.strikes >= STRIKES:
                        return f"Sandbox {box.sandbox.id} was lost: it does not answer."
                self._resting[box] = None
        finally:
            self._resting.pop(box, None)

    def fault(self, box: Box) -> None:
        """A session on the box ended in a fault."""
        self._strike(box)
        box.faulted = True
        box.look.set()

    def spent(self, box: Box) -> None:
        """The box has served its purpose: no session comes to it any more, and its watch ends."""
        box.spent = True
        self._places.withdraw(box)
        box.look.set()

    def _strike(self, box: Box) -> None:
        box.strikes += 1
        self._places.withdraw(box)

    def _check_neighbours(self) -> None:
        recently = asyncio.get_running_loop().time() - SECONDS_BETWEEN_CHECKS
        for _ in range(NEIGHBOURS):
            neighbour = next(iter(self._resting), None)
            if neighbour is None or neighbour.checked_at > recently:
                return
            del self._resting[neighbour]
            if not neighbour.sessions:
                self._strike(neighbour)
            neighbour.look.set()

    async def _answers(self, box: Box) -> bool:
        async with self._turns:
            box.look.clear()
            try:
                async with asyncio.timeout(CHECK_TIMEOUT_S):
                    return await box.sandbox.healthy()
            except Exception as error:  # by contract it never raises; a provider's mistake must not end the watch
                log.warning("health check failed", sandbox=box.sandbox.id, reason=repr(error))
                return False


def _relapsed(box: Box) -> bool:
    """Notes that a box was found well, and says whether that has followed too many faults."""
    box.relapses += box.faulted and not box.sessions
    box.faulted = False
    return box.relapses >= RELAPSES


async def _rest(box: Box, seconds: float) -> None:
    """Returns after a while (0: never), or at once when the box is to be looked at now."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds or None):
            await box.look.wait()
