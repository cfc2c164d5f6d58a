"""A lease of a box in a task of its own, so that its loss cuts calls to the box and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from finqa_cli.contracts import Sandbox
from finqa_cli.errors import EpisodeError
from finqa_cli.rollout.pool import Pool, Waiting


class HeldLease:
    """A box until `release`.

    The pool cuts the block of a lease whose box is lost, whatever the block awaits. Held by the episode's own task
    that would end its generation too, which needs no box. Here it ends this object's task, and with it the call that
    runs inside `reachable`.
    """

    def __init__(self, pool: Pool, waiting: Waiting) -> None:
        loop = asyncio.get_running_loop()
        self._taken: asyncio.Future[Sandbox | None] = loop.create_future()
        self._released: asyncio.Future[None] = loop.create_future()
        self._loss: Exception | None = None
        self._call: asyncio.Timeout | None = None
        self._task = loop.create_task(self._hold(pool, waiting))

    @classmethod
    async def take(cls, pool: Pool, waiting: Waiting) -> HeldLease:
        """Leases; the engine seat is given up by `waiting` while no box is free.

        Raises:
            FinqaError: Whatever the pool raises instead of a box.
        """
        held = cls(pool, waiting)
        try:
            await asyncio.shield(held._taken)
        except BaseException:  # the pool's refusal, or this episode is being cancelled
            await held._abandon()
            raise
        return held

    @property
    def box(self) -> Sandbox | None:
        """What was leased; None when the environment needs no box."""
        return self._taken.result()

    @asynccontextmanager
    async def reachable(self) -> AsyncIterator[None]:
        """For one call to the box.

        Raises:
            SandboxError: The box was lost before the call or in the middle of it.
        """
        if self._loss is not None:
            raise self._loss
        self._call = asyncio.timeout(None)
        try:
            async with self._call:
                yield
        except TimeoutError:
            if self._loss is None:
                raise
            raise self._loss from None
        finally:
            self._call = None

    async def release(self, fault: EpisodeError | None = None) -> None:
        """Gives the box back; a fault is told to the pool, which then looks at the box. Idempotent."""
        if not self._released.done():
            if fault is None:
                self._released.set_result(None)
            else:
                self._released.set_exception(fault)
        await asyncio.shield(self._task)

    async def _hold(self, pool: Pool, waiting: Waiting) -> None:
        try:
            async with pool.lease(waiting) as box:
                self._taken.set_result(box)
                await asyncio.shield(self._released)  # a cut cancels what it interrupts, and this must stay open
        except Exception as error:  # nobody awaits this task before `release`: each case must reach who does care
            if not self._taken.done():
                self._taken.set_exception(error)
            elif not self._released.done():
                self._lose(error)
            elif not isinstance(error, EpisodeError):  # the fault that it was released with comes back out of the lease
                raise

    def _lose(self, error: Exception) -> None:
        self._loss = error
        self._released.cancel()
        if self._call is not None and not self._call.expired():
            self._call.reschedule(asyncio.get_running_loop().time())

    async def _abandon(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
