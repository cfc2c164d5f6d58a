"""The boxes of a run: filled in the background, leased to one episode at a time, replaced when they die."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from typing import Protocol

import structlog

from finqa_cli.contracts import Sandbox, SandboxProvider
from finqa_cli.errors import SandboxError
from finqa_cli.types import SandboxSpec

log = structlog.get_logger(__name__)

Waiting = Callable[[], AbstractContextManager[None]]
"""A context that an attempt spends its waiting in: it gives its engine seat up there."""

SECONDS_BETWEEN_TOP_UPS = 5.0


class Pool(Protocol):
    """Where attempts get their box from."""

    def lease(self, waiting: Waiting = nullcontext) -> AbstractAsyncContextManager[Sandbox | None]:
        """A box for one episode; None for environments that need none."""
        ...

    async def start(self) -> None:
        """Begins to fill, without waiting."""
        ...

    async def settled(self) -> None:
        """Waits until every start that is running has succeeded or failed."""
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

    async def settled(self) -> None:
        """Nothing to wait for."""

    async def close(self) -> None:
        """Nothing to end."""


class SandboxPool:
    """Up to `size` boxes of one spec.

    A lease goes back when its episode ends. When a box no longer answers, it and every idle box that died with it are
    ended and started anew. Boxes whose start failed are tried again every few seconds. A waiting lease fails with the
    reason of the last failed start once nothing is alive and nothing is starting.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        spec: SandboxSpec,
        *,
        size: int,
        max_concurrent_create: int,
        labels: Mapping[str, str],
    ) -> None:
        self._provider = provider
        self._spec = spec
        self._size = size
        self._labels = dict(labels)
        self._creating = asyncio.Semaphore(max_concurrent_create)
        self._changed = asyncio.Condition()
        self._idle: deque[Sandbox] = deque()
        self._starts: set[asyncio.Task[None]] = set()
        self._alive = 0
        self._failure: Exception | None = None
        self._failed_at = 0.0

    @property
    def alive(self) -> int:
        """Boxes that are running now, leased or idle."""
        return self._alive

    async def start(self) -> None:
        """Begins to fill, without waiting."""
        for _ in range(self._size):
            self._launch()

    async def settled(self) -> None:
        """Waits until every start that is running has succeeded or failed."""
        await asyncio.gather(*self._starts, return_exceptions=True)

    @asynccontextmanager
    async def lease(self, waiting: Waiting = nullcontext) -> AsyncIterator[Sandbox | None]:
        """A running box, for this block alone.

        Raises:
            SandboxError: No box is alive and none could be started; a start that failed for another reason (a full
                disk, say) raises that.
        """
        box = await self._take(waiting)
        try:
            yield box
        except SandboxError:
            # Only a fault of the box itself is checked: the episode's other errors say nothing about the box.
            usable = False
            try:
                usable = await box.healthy()
            finally:
                await self._give_back(box, usable=usable)
            raise
        except BaseException:
            await self._give_back(box, usable=True)
            raise
        await self._give_back(box, usable=True)

    async def close(self) -> None:
        """Cancels running starts and lets the provider end every box."""
        for task in list(self._starts):
            task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        await self._provider.close()
        self._alive = 0

    async def _take(self, waiting: Waiting) -> Sandbox:
        if self._idle:
            return self._idle.popleft()
        if self._hopeless():
            self._launch()  # everything died: each waiting attempt gives it one more try
        with waiting():
            async with self._changed:
                await self._changed.wait_for(lambda: self._idle or self._hopeless())
                if self._idle:
                    return self._idle.popleft()
        assert self._failure is not None, "a pool without boxes and starts has seen a start fail"
        raise self._failure

    async def _give_back(self, box: Sandbox, *, usable: bool) -> None:
        if usable:
            self._idle.append(box)
            missing = self._alive + len(self._starts) < self._size
            if missing and time.monotonic() - self._failed_at > SECONDS_BETWEEN_TOP_UPS:
                self._launch()
        else:
            self._replace(box)
            await self._sweep()
        await self._notify()

    async def _sweep(self) -> None:
        """Boxes often die together, with a server or a machine that they share: look at the idle ones at once."""
        boxes = list(self._idle)
        self._idle.clear()
        answers = await asyncio.gather(*(box.healthy() for box in boxes))
        for box, healthy in zip(boxes, answers, strict=True):
            if healthy:
                self._idle.append(box)
            else:
                self._replace(box)

    def _replace(self, box: Sandbox) -> None:
        log.warning("sandbox died; starting another", sandbox=box.id)
        self._alive -= 1
        self._launch(instead_of=box)

    def _launch(self, instead_of: Sandbox | None = None) -> None:
        self._starts.add(asyncio.create_task(self._start_box(instead_of)))

    async def _start_box(self, instead_of: Sandbox | None) -> None:
        try:
            if instead_of is not None:
                await _stop(instead_of)
            async with self._creating:
                box = await self._provider.start(self._spec, self._labels)
        except Exception as error:  # nobody awaits this task: whatever it is, a waiting lease must hear of it
            log.warning("sandbox did not start", reason=str(error))
            self._failure, self._failed_at = error, time.monotonic()
        else:
            self._alive += 1
            self._idle.append(box)
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._starts.discard(task)
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _hopeless(self) -> bool:
        return self._alive == 0 and not self._starts


async def _stop(box: Sandbox) -> None:
    try:
        await box.stop()
    except Exception as error:  # it is being replaced because it is broken; the provider's close ends what is left
        log.warning("sandbox did not stop", sandbox=box.id, reason=str(error))
