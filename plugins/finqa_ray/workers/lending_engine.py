"""The controller's token engine when rollout workers send requests directly to its servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import structlog

from finqa_cli.contracts import EngineLoan, TokenEngine
from finqa_cli.errors import FinqaError
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion
from finqa_ray.workers.worker_messages import Offer

log = structlog.get_logger(__name__)

LOOK_S = 1.0
"""Seconds between two checks whether the servers that can be offered have changed: one failed, or is back."""

OFFER_S = 10.0
"""Seconds to wait until a worker has received an offer; then it takes effect without that worker."""

Borrower = tuple[int, int]
"""Number and generation of a rollout worker."""

Send = Callable[[Offer], Awaitable[object]]


@dataclass(slots=True, eq=False)
class _Lent:
    """A loan, and the workers that may have requests in progress under it."""

    loan: EngineLoan
    users: set[Borrower] = field(default_factory=set)


class LendingEngine(TokenEngine):
    """Wraps an engine and offers its servers, if it has any, to rollout workers; see `TokenEngine.lend`.

    `load` and `sleep` return when all workers have the new offer, so that no later request uses an older one. A version
    stays on the servers until every worker has reported it as unused, or is lost.
    """

    def __init__(self, engine: TokenEngine, workers: int) -> None:
        """Wrap `engine`; `workers` is the number of workers that share its servers."""
        self._engine, self._workers = engine, workers
        self._changing = asyncio.Lock()
        self._borrowers: dict[Borrower, Send] = {}
        self._offer = Offer(number=0, workers=workers)
        self._lent: dict[int, _Lent] = {}
        self._watching: asyncio.Task[None] | None = None
        self._copy_facts()

    async def start(self) -> None:
        """Start the engine, and offer its servers. Idempotent."""
        await self._engine.start()
        self._copy_facts()
        if self._watching is None:
            async with self._changing:
                await self._publish(self._engine.lend())
            self._watching = asyncio.create_task(self._watch())

    async def load(self, policy: PolicyVersion) -> None:
        """Load a version into the engine, then offer it to the workers; see `TokenEngine.load`."""
        async with self._changing:
            await self._engine.load(policy)
            await self._publish(self._engine.lend())

    async def sleep(self) -> None:
        """Withdraw the servers from the workers, then let the engine sleep."""
        async with self._changing:
            await self._publish(None)
            await self._engine.sleep()

    async def wake(self) -> None:
        """Wake the engine, and offer its servers again."""
        async with self._changing:
            await self._engine.wake()
            await self._publish(self._engine.lend())

    async def join(self, borrower: Borrower, send: Send) -> None:
        """Send the present offer to a new worker, and all later offers.

        Args:
            borrower: The worker.
            send: Sends an offer to the worker.

        Raises:
            FinqaError: `send` raised it.
        """
        self._borrowers[borrower] = send
        if (lent := self._lent.get(self._offer.number)) is not None:
            lent.users.add(borrower)
        await send(self._offer)

    def leave(self, borrower: Borrower) -> None:
        """Forget a worker that is lost."""
        self._borrowers.pop(borrower, None)
        for number in [*self._lent]:
            self.unused(borrower, number)

    def unused(self, borrower: Borrower, number: int) -> None:
        """Record that a worker has no request under an offer, and will have none."""
        if (lent := self._lent.get(number)) is not None:
            lent.users.discard(borrower)
            self._end_loans()

    def suspect(self, key: str, replica: int) -> None:
        """Let the engine send the next request of an episode to the replica that failed for a worker, and judge it.

        Args:
            key: Key of the request that failed.
            replica: Number of the replica.
        """
        if (lent := self._lent.get(self._offer.number)) is not None:
            lent.loan.suspect(key.partition("#")[0], replica)

    def heard(self, replicas: Iterable[int]) -> None:
        """Report to the engine that these replicas answered workers."""
        if (lent := self._lent.get(self._offer.number)) is not None:
            for replica in replicas:
                lent.loan.heard(replica)

    async def generate(self, request: GenerateRequest) -> Completion:
        """See `TokenEngine.generate`."""
        return await self._engine.generate(request)

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        """See `TokenEngine.probe`."""
        return await self._engine.probe(request)

    async def returned(self) -> None:
        """See `TokenEngine.returned`."""
        await self._engine.returned()

    @property
    def max_context(self) -> int:
        """See `TokenEngine.max_context`."""
        return self._engine.max_context

    @property
    def nodes(self) -> tuple[str, ...]:
        """See `TokenEngine.nodes`."""
        return self._engine.nodes

    def seat(self) -> AbstractContextManager[None]:
        """See `Engine.seat`."""
        return self._engine.seat()

    def usage(self, episode: str) -> Mapping[str, Any]:
        """Return the usage of requests through the engine; workers report their own."""
        return self._engine.usage(episode)

    async def close(self) -> None:
        """End all loans, and close the engine. Idempotent."""
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
                    # Log: A defect in an engine; requests pass through the controller.
                    log.error("an engine cannot lend its servers", exc_info=True)

    async def _publish(self, loan: EngineLoan | None) -> None:
        """Offer a loan to all workers if its routes differ from those of the last one; otherwise end it."""
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
        except (TimeoutError, FinqaError) as error:  # lost, or late: its completions still name the version they used
            # Log: A rollout worker did not confirm the addresses of the engines in time.
            log.warning("a worker did not get an offer", worker=borrower[0], reason=str(error) or "timeout")

    def _end_loans(self) -> None:
        for number in [number for number, lent in self._lent.items() if not lent.users]:
            if number != self._offer.number:
                self._lent.pop(number).loan.end()
