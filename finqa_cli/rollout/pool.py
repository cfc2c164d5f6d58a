"""The boxes of a run: filled in the background, leased to one episode at a time, replaced when they die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import structlog

from finqa_cli.contracts import Sandbox, SandboxProvider
from finqa_cli.errors import SandboxError
from finqa_cli.types import SandboxSpec

log = structlog.get_logger(__name__)


class Pool(Protocol):
    """Where attempts get their box from."""

    def lease(self) -> AbstractAsyncContextManager[Sandbox | None]:
        """A box for one episode; None for environments that need none."""
        ...

    async def start(self) -> None:
        """Begins to fill, without waiting."""
        ...

    async def close(self) -> None:
        """Ends every box."""
        ...


class NoSandboxes:
    """The pool of an environment whose sessions run in this process."""

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Sandbox | None]:
        """Nothing to lease."""
        yield None

    async def start(self) -> None:
        """Nothing to fill."""

    async def close(self) -> None:
        """Nothing to end."""


class SandboxPool:
    """Up to `size` boxes of one spec.

    A lease goes back when its episode ends. A box that no longer answers is ended and a new one is started in its
    place; when a start fails, waiting leases fail with its reason once nothing else is alive or starting.
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
        self._idle: asyncio.Queue[Sandbox | None] = asyncio.Queue()
        self._starts: set[asyncio.Task[None]] = set()
        self._alive = 0
        self._waiting = 0
        self._failure: Exception | None = None

    @property
    def alive(self) -> int:
        """Boxes that are running now, leased or idle."""
        return self._alive

    async def start(self) -> None:
        """Begins to fill, without waiting."""
        for _ in range(self._size):
            self._start_one()

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Sandbox | None]:
        """A running box, for this block alone.

        Raises:
            SandboxError: No box is alive and none could be started; a start that failed for another reason (a full
                disk, say) raises that.
        """
        box = await self._take()
        usable = True
        try:
            yield box
        except SandboxError:
            # Only a fault of the box itself is checked: the episode's other errors say nothing about the box.
            usable = await box.healthy()
            raise
        finally:
            if usable:
                self._idle.put_nowait(box)
            else:
                self._replace(box)

    async def close(self) -> None:
        """Cancels running starts and lets the provider end every box."""
        for task in list(self._starts):
            task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        await self._provider.close()
        self._alive = 0

    async def _take(self) -> Sandbox:
        self._waiting += 1
        try:
            while True:
                if self._idle.empty() and not self._starts and self._alive == 0:
                    self._start_one()  # everything died: give each waiting attempt one more try
                box = await self._idle.get()
                if box is not None:
                    return box
                if self._alive == 0 and not self._starts:
                    assert self._failure is not None
                    raise self._failure
        finally:
            self._waiting -= 1

    def _start_one(self) -> None:
        task = asyncio.create_task(self._start_box())
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _start_box(self) -> None:
        try:
            async with self._creating:
                box = await self._provider.start(self._spec, self._labels)
        except Exception as error:  # nobody awaits this task: whatever it is, a waiting lease must hear of it
            log.warning("sandbox did not start", reason=str(error))
            self._failure = error
            self._wake_waiting()
            return
        self._alive += 1
        self._idle.put_nowait(box)

    def _wake_waiting(self) -> None:
        asyncio.get_running_loop().call_soon(self._wake_now)  # after this start has left the set of running starts

    def _wake_now(self) -> None:
        for _ in range(self._waiting):
            self._idle.put_nowait(None)  # no box: it makes a waiting lease look again

    def _replace(self, box: Sandbox) -> None:
        log.warning("sandbox died; starting another", sandbox=box.id)
        self._alive -= 1
        task = asyncio.create_task(self._stop_and_restart(box))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _stop_and_restart(self, box: Sandbox) -> None:
        await box.stop()
        await self._start_box()
