"""The controller's token engine where rollout workers ask its servers themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import structlog

from finqa_cli.contracts import EngineLoan, TokenEngine
from finqa_cli.errors import FinqaError
from finqa_cli.rollout.worker_messages import Offer
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion

log = structlog.get_logger(__name__)

LOOK_S = 1.0
"""Seconds between two looks whether the servers that can be lent are others: one failed, or is back."""

OFFER_S = 10.0
"""Seconds that a worker may take to get an offer before the others use it without that worker."""

Borrower = tuple[int, int]
"""Number and generation of a worker."""

Send = Callable[[Offer], Awaitable[object]]


@dataclass(slots=True, eq=False)
class _Lent:
    """A loan, and the workers that may have requests under it."""

    loan: EngineLoan
    users: set[Borrower] = field(default_factory=set)


class LendingEngine(TokenEngine):
    """An engine whose servers are lent to rollout workers, where it has any; see `TokenEngine.lend`.

    `load` and `sleep` return when all workers have the new offer: no request begins under an older one then. A version
    stays on the servers until the last worker has reported that it is unused, or is lost.
    """

    def __init__(self, engine: TokenEngine, workers: int) -> None:
        """`workers` share the servers."""
        self._engine, self._workers = engine, workers
        self._changing = asyncio.Lock()
        self._borrowers: dict[Borrower, Send] = {}
        self._offer = Offer(number=0, workers=workers)
        self._lent: dict[int, _Lent] = {}
        self._watching: asyncio.Task[None] | None = None
        self._copy_facts()

    async def start(self) -> None:
        """Starts the engine, and lends what it has. Idempotent."""
        await self._engine.start()
        self._copy_facts()
        if self._watching is None:
            async with self._changing:
                await self._publish(self._engine.lend())
            self._watching = asyncio.create_task(self._watch())

    async def load(self, policy: PolicyVersion) -> None:
        """Has the engine load a version, and then the workers use it; see `TokenEngine.load`."""
        async with self._changing:
            await self._engine.load(policy)
            await self._publish(self._engine.lend())

    async def sleep(self) -> None:
        """Has the workers use the servers no more, and then the engine sleep."""
        async with self._changing:
            await self._publish(None)
            await self._engine.sleep()

    async def wake(self) -> None:
        """Wakes the engine, and lends its servers again."""
        async with self._changing:
            await self._engine.wake()
            await self._publish(self._engine.lend())

    async def join(self, borrower: Borrower, send: Send) -> None:
        """Lends a worker what the others have.

        Raises:
            FinqaError: `send` raised it.
        """
        self._borrowers[borrower] = send
        if (lent := self._lent.get(self._offer.number)) is not None:
            lent.users.add(borrower)
        await send(self._offer)

    def leave(self, borrower: Borrower) -> None:
        """Forgets a worker that is lost."""
        self._borrowers.pop(borrower, None)
        for number in [*self._lent]:
            self.unused(borrower, number)

    def unused(self, borrower: Borrower, number: int) -> None:
        """Notes that a worker has no request under an offer, and will have none."""
        if (lent := self._lent.get(number)) is not None:
            lent.users.discard(borrower)
            self._end_loans()

    def suspect(self, key: str, replica: int) -> None:
        """Has the engine send a request to the replica that failed for a worker, and judge that."""
        if (lent := self._lent.get(self._offer.number)) is not None:
            lent.loan.suspect(key.partition("#")[0], replica)

    def heard(self, replicas: Iterable[int]) -> None:
        """Tells the engine that these replicas answered workers."""
        if (lent := self._lent.get(self._offer.number)) is not None:
            for replica in replicas:
                lent.loan.heard(replica)

    async def generate(self, request: GenerateRequest) -> Completion:
        """What the engine generates."""
        return await self._engine.generate(request)

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        """What the engine returns."""
        return await self._engine.probe(request)

    async def returned(self) -> None:
        """Waits as the engine does."""
        await self._engine.returned()

    @property
    def max_context(self) -> int:
        """That of the engine."""
        return self._engine.max_context

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those of the engine."""
        return self._engine.nodes

    def seat(self) -> AbstractContextManager[None]:
        """One of the engine."""
        return self._engine.seat()

    def usage(self, episode: str) -> Mapping[str, Any]:
        """What passed through the engine."""
        return self._engine.usage(episode)

    async def close(self) -> None:
        """Ends all loans and the engine. Idempotent."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._borrowers.clear()
        while self._lent:
            self._lent.popitem()[1].loan.end()
        await self._engine.close()

    def _copy_facts(self) -> None:
        engine = self._engine
        self.lockstep, self.sleeps, self.reports_return = engine.lockstep, engine.sleeps, engine.reports_return
        self.probe_tolerance, self.adapter_dtype = engine.probe_tolerance, engine.adapter_dtype

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            async with self._changing:
                try:
                    await self._publish(self._engine.lend())
                except Exception:  # no caller awaits this task
                    log.error("an engine cannot lend its servers", exc_info=True)

    async def _publish(self, loan: EngineLoan | None) -> None:
        """Offers a loan to all workers, where it differs from the last one."""
        routes = loan.routes if loan is not None else ()
        if routes == self._offer.routes:
            if loan is not None:
                loan.end()
            return
        self._offer = Offer(number=self._offer.number + 1, routes=routes, workers=self._workers)
        if loan is not None:
            self._lent[self._offer.number] = _Lent(loan, set(self._borrowers))
        await asyncio.gather(*(self._send(borrower, send) for borrower, send in self._borrowers.items()))
        self._end_loans()

    async def _send(self, borrower: Borrower, send: Send) -> None:
        try:
            async with asyncio.timeout(OFFER_S):
                await send(self._offer)
        except (TimeoutError, FinqaError) as error:  # it is lost, or late: its completions name the version they had
            log.warning("a worker did not get an offer", worker=borrower[0], reason=str(error) or "timeout")

    def _end_loans(self) -> None:
        for number in [number for number, lent in self._lent.items() if not lent.users]:
            if number != self._offer.number:
                self._lent.pop(number).loan.end()
