"""Which handler answers which path, after the key was checked and the dice were thrown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from finqa_cli.testing.daytona.account import Account
from finqa_cli.testing.daytona.http_messages import Cut, Refusal, Reply, Request

Handler = Callable[..., Awaitable[Reply]]
FAULTY = ("api", "toolbox")
EVENTS = "/api/socket.io"
SERVER_ERRORS = (500, 502, 503)


@dataclass(frozen=True, slots=True)
class Route:
    """`{name}` in a pattern stands for one segment of the path and is passed to the handler by that name."""

    method: str
    pattern: str
    handler: Handler

    def match(self, method: str, parts: tuple[str, ...]) -> dict[str, str] | None:
        """The segments by name; None when the request is another's."""
        wanted = self.pattern.strip("/").split("/")
        if method != self.method or len(wanted) != len(parts):
            return None
        found: dict[str, str] = {}
        for pattern, part in zip(wanted, parts, strict=True):
            if pattern.startswith("{"):
                found[pattern[1:-1]] = part
            elif pattern != part:
                return None
        return found


class Router:
    """Answers requests of the API, the toolbox and the control."""

    def __init__(self, account: Account, api_key: str) -> None:
        self._account = account
        self._expected = f"Bearer {api_key}"
        self._routes: dict[str, list[Route]] = {}

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        """Adds a route; its first segment tells the part."""
        self._routes.setdefault(pattern.split("/")[1], []).append(Route(method, pattern, handler))

    async def answer(self, request: Request, gone: asyncio.Event) -> Reply:
        """The reply to a request.

        Raises:
            Refusal: An error to answer with.
            Cut: The connection is to be dropped.
        """
        counters, parts = self._account.counters, request.parts
        found = self._find(request, parts)
        name = f"{request.head.method} {found[0].pattern}" if found else f"{request.head.method} unknown"
        try:
            reply = await self._answer(request, gone, found)
        except Refusal as refusal:
            counters.request(name, refusal.status)
            raise
        except Cut:
            counters.request(name, 0)
            raise
        counters.request(name, reply.status)
        return reply

    def _find(self, request: Request, parts: tuple[str, ...]) -> tuple[Route, dict[str, str]] | None:
        for route in self._routes.get(parts[0], ()):
            if (segments := route.match(request.head.method, parts)) is not None:
                return route, segments
        return None

    async def _answer(self, request: Request, gone: asyncio.Event, found: tuple[Route, dict[str, str]] | None) -> Reply:
        if request.head.path.startswith(EVENTS):
            raise Refusal(404, "There are no events here; the SDK polls instead")
        if request.head.headers.get("authorization") != self._expected:
            self._account.counters.unauthorised += 1
            raise Refusal(401, "Invalid credentials")
        if found is None:
            raise Refusal(404, f"Cannot {request.head.method} {request.head.path}")
        route, segments = found
        if request.parts[0] not in FAULTY:
            return await route.handler(request, **segments)
        dice, config = self._account.dice, self._account.config
        await asyncio.sleep(dice.seconds("api", config.latency.api))
        if dice.hit("server_error", config.faults.server_error):
            status = dice.stream("server_error status").choice(SERVER_ERRORS)
            raise Refusal(status, "The service is unavailable (injected fault)")
        hangs = dice.hit("hang", config.faults.hang)
        if hangs and request.head.method != "POST":
            await gone.wait()
            raise Cut
        reply = await route.handler(request, **segments)
        if hangs:
            await gone.wait()
            raise Cut
        return reply
