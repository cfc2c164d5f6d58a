"""The token engine of a rollout worker, which sends requests directly to the servers that the controller offers.

A request that a server cannot answer goes through the controller, whose engine restarts servers, loads versions and
excludes replicas. So a failing replica costs a request one try, and replicas are judged in one place.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from finqa_cli.contracts import EngineRoute, ServerAccess, ServerClient, TokenEngine
from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.rollout.replica_choice import ReplicaHealth, Router
from finqa_cli.rollout.replicas import add_usage
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion
from finqa_ray.workers.relayed_engine import Relay, ReportQueue
from finqa_ray.workers.worker_messages import Offer, Unused

log = structlog.get_logger(__name__)


class _Server(ReplicaHealth):
    """A replica as this worker knows it. `client` is None until there is a route to the replica."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.client: ServerClient | None = None
        self._access: ServerAccess | None = None

    def connect(self, access: ServerAccess, workers: int) -> ServerClient | None:
        """Make a client if the server is not the one before; return the old client, which is not needed any more."""
        if access == self._access:
            return None
        old, self.client, self._access = self.client, access.connect(workers), access
        self.succeeded()
        return old


class DirectEngine(TokenEngine):
    """Uses the servers of the newest offer, and the controller's engine for everything else.

    Each request belongs to one offer from its beginning to its end; the routes of the offer decide the policy version.
    An offer is reported as unused when there is a newer one and the last request of the old one has ended.

    Attributes:
        longest: Longest prompt plus completion of the controller's engine, in tokens.
    """

    def __init__(self, relay: Relay, queue: ReportQueue) -> None:
        self._relay, self._queue = relay, queue
        self._offer = Offer(number=0)
        self._users: Counter[int] = Counter()
        self._servers: list[_Server] = []
        self._former: list[ServerClient] = []
        self._router = Router(1)
        self.longest = 0

    @property
    def max_context(self) -> int:
        """Longest prompt plus completion of the controller's engine, in tokens."""
        return self.longest

    async def start(self) -> None:
        """Do nothing: the controller has started the servers."""

    async def take(self, offer: Offer) -> None:
        """Use an offer for all later requests, unless there is a newer one."""
        before = self._offer
        if offer.number <= before.number:
            return
        if len(offer.routes) > len(self._servers):
            self._servers = [_Server(number) for number in range(len(offer.routes))]
            self._router = Router(len(self._servers))
        routes = [self._connected(number, route, offer.workers) for number, route in enumerate(offer.routes)]
        for number, route in enumerate(before.routes):
            if route is None:
                self._servers[number].due()  # the last offer had no route to it, so its failures here are outdated
        self._offer = Offer(number=offer.number, routes=tuple(routes), workers=offer.workers)
        for number in range(before.number, offer.number):
            self._report_unused(number)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Send the request to a server. If that fails, or none is offered, send it through the controller.

        Raises:
            FinqaError: The controller's engine raised it.
        """
        offer, clock = self._offer, asyncio.get_running_loop().time
        server = self._choose(request, offer, clock())
        if server is None or server.client is None or (route := offer.routes[server.number]) is None:
            return await self._relayed(request)
        began = clock()
        try:
            with self._under(offer.number), server.busy():
                completion = await server.client.generate(request, route)
        except FinqaError as error:
            server.failed(error, began=began, now=clock())
            # Log: A rollout worker could not reach an engine's server directly.
            log.info("a request passes through the controller", key=request.key, reason=error.message)
            return await self._relayed(request, failed=server.number)
        server.succeeded()
        self._queue.answered.add(server.number)
        return completion

    async def load(self, policy: PolicyVersion) -> None:
        """Raise ConfigError: only the controller loads versions."""
        raise ConfigError(f"A rollout worker loads no version, and not {policy.number}.")

    def usage(self, episode: str) -> Mapping[str, Any]:
        """Return the usage that the controller's engine reports, plus the usage of the servers by this process."""
        clients = [*self._former, *(server.client for server in self._servers if server.client is not None)]
        return add_usage([self._relay.usage(episode), *(client.usage(episode) for client in clients)])

    async def close(self) -> None:
        """Close the connections; the controller ends the servers."""
        clients = [*self._former, *(server.client for server in self._servers if server.client is not None)]
        await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)

    def _connected(self, number: int, route: EngineRoute | None, workers: int) -> EngineRoute | None:
        """Return the route after connecting to its server; None if there is no route or no connection."""
        if route is None:
            return None
        try:
            old = self._servers[number].connect(route.server, workers)
        except FinqaError as error:
            # Log: A rollout worker cannot connect to an engine's server; this is slower.
            log.warning("requests to a replica pass through the controller", replica=number, reason=error.message)
            return None
        if old is not None:
            self._former.append(old)
        return route

    def _choose(self, request: GenerateRequest, offer: Offer, now: float) -> _Server | None:
        loads = {
            server.number: server.load
            for server, route in zip(self._servers, offer.routes, strict=False)
            if route is not None and server.usable(now)
        }
        if not loads:
            return None
        return self._servers[self._router.choose(request.key.partition("#")[0], request.token_ids, loads)]

    async def _relayed(self, request: GenerateRequest, *, failed: int | None = None) -> Completion:
        completion = await self._relay.ask(request, failed=failed)
        assert isinstance(completion, Completion)
        return completion

    @contextmanager
    def _under(self, number: int) -> Iterator[None]:
        self._users[number] += 1
        try:
            yield
        finally:
            self._users[number] -= 1
            if number != self._offer.number:
                self._report_unused(number)

    def _report_unused(self, number: int) -> None:
        if not self._users[number]:
            del self._users[number]
            self._queue.add(Unused(offer=number))
