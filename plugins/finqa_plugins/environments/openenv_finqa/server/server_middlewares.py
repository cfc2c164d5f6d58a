"""ASGI middlewares that refuse unauthorized requests, and limit what one peer may use.

From the outside in, as `guard` puts them around the application:

- `Admission`: where requests may come from (`Host`, `Origin`), and the bearer token.
- `WebSocketCount`: how many connections a peer may have.
- `BodyLimit`: how long a body may be, and how long it may take. The application gets complete bodies only.
- `JsonOnly`: requests that change state must be declared as JSON, which pages of other sites cannot send without a
  CORS preflight.
- `LateSessions`: a websocket gets its session when its first frame arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from finqa_plugins.environments.openenv_finqa.server.peers import Peers
from finqa_plugins.environments.openenv_finqa.server.server_limits import (
    MAX_BODY_BYTES,
    ServerLimits,
    host_name,
    peer_of,
)

Value = TypeVar("Value")
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Event, Receive, Send], Awaitable[None]]

LINGER_S = 5.0
"""Seconds in which the rest of a refused body is read and dropped, so that its sender can read the refusal."""
OPEN_PATHS = ("/health",)
"""Paths without access control: health checks of containers have no token, and the reply reveals nothing."""
SESSION_PATHS = ("/ws", "/mcp")
POLICY_VIOLATION = 1008
_READING = ("GET", "HEAD", "OPTIONS")


def guard(application: Application, limits: ServerLimits, peers: Peers) -> Application:
    """Put all middlewares of this module around an application."""
    inner = JsonOnly(LateSessions(application, limits.opening_timeout_s))
    return Admission(WebSocketCount(BodyLimit(inner, limits.body_timeout_s, peers), peers), limits)


class Admission:
    """Refuses requests of other sites (403) and those without the token (401)."""

    def __init__(self, application: Application, limits: ServerLimits) -> None:
        self._application = application
        self._limits = limits
        self._expected = f"Bearer {limits.token}".encode()

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN_PATHS:
            await self._application(scope, receive, send)
            return
        if reason := self._foreign(scope):
            await refuse(scope, receive, send, 403, reason)
        elif self._limits.token and not self._has_token(scope):
            await refuse(scope, receive, send, 401, "A bearer token is needed: Authorization: Bearer TOKEN.")
        else:
            await self._application(scope, receive, send)

    def _foreign(self, scope: Event) -> str:
        """Return why the request is refused for the server's address, its Host or its Origin; empty if it is not."""
        address = scope.get("server")
        if address is not None and not self._limits.serves(address[0]):
            return "Beyond loopback this server needs a token: set FINQA_TOKEN, or FINQA_REQUIRE_TOKEN=0."
        hosts = _values(scope, b"host")
        if len(hosts) != 1 or not self._limits.allows_host(host_name(hosts[0])):
            return "The Host is not allowed: add its name to FINQA_ALLOWED_HOSTS of the server."
        for origin in _values(scope, b"origin"):
            if not self._limits.allows_host(_host_of_origin(origin)):
                return "The Origin is not allowed: add its host to FINQA_ALLOWED_HOSTS of the server."
        return ""

    def _has_token(self, scope: Event) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)


class WebSocketCount:
    """Counts websockets among the connections of their peer; refuses those above its limit (429)."""

    def __init__(self, application: Application, peers: Peers) -> None:
        self._application = application
        self._peers = peers

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        if scope["type"] != "websocket":
            await self._application(scope, receive, send)
            return
        peer = peer_of(scope.get("client"))
        if not self._peers.enter(peer):
            await refuse(scope, receive, send, 429, "This peer has as many connections as it may have.")
            return
        try:
            await self._application(scope, receive, send)
        finally:
            self._peers.leave(peer)


class BodyLimit:
    """Reads complete bodies before the application runs; refuses long (413), slow (408) and too many ones (429)."""

    def __init__(self, application: Application, timeout_s: float, peers: Peers) -> None:
        self._application = application
        self._timeout_s = timeout_s
        self._peers = peers

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        declared = _values(scope, b"content-length")
        if not _values(scope, b"transfer-encoding") and declared in ([], ["0"]):
            await self._application(scope, receive, send)
            return
        if declared and (not declared[0].isdecimal() or len(declared[0]) > 12 or int(declared[0]) > MAX_BODY_BYTES):
            await refuse(scope, receive, send, 413, _TOO_LONG)
            return
        peer = peer_of(scope.get("client"))
        body = bytearray()
        try:
            status, detail = await self._read(receive, body, peer)
            if status == 200:
                await self._application(scope, _replayed(bytes(body), receive), send)
            elif status:
                await refuse(scope, receive, send, status, detail)
        finally:
            self._peers.release(peer, len(body))

    async def _read(self, receive: Receive, body: bytearray, peer: str) -> tuple[int, str]:
        """Append the request's body to `body`; return 200, the status of a refusal, or 0 if the peer is gone."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    event = await receive()
                    if event["type"] != "http.request":
                        return 0, ""
                    part = event.get("body", b"")
                    if len(body) + len(part) > MAX_BODY_BYTES:
                        return 413, _TOO_LONG
                    if not self._peers.hold(peer, len(part)):
                        return 429, "This peer has too many unfinished requests here."
                    body += part
                    if not event.get("more_body", False):
                        return 200, ""
        except TimeoutError:
            return 408, f"The body did not arrive within {self._timeout_s:g} s."


class JsonOnly:
    """Refuses requests that may change something and whose body is not declared as JSON (415)."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        if scope["type"] == "http" and scope["method"] not in _READING:
            kinds = _values(scope, b"content-type")
            if len(kinds) != 1 or kinds[0].partition(";")[0].strip().lower() != "application/json":
                await refuse(scope, receive, send, 415, "The Content-Type must be application/json.")
                return
        await self._application(scope, receive, send)


class LateSessions:
    """Runs the application when the first frame of a websocket has arrived: an opening alone gets no session."""

    def __init__(self, application: Application, timeout_s: float) -> None:
        self._application = application
        self._timeout_s = timeout_s

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        if scope["type"] != "websocket" or not scope["path"].endswith(SESSION_PATHS) or wanted_session(scope):
            await self._application(scope, receive, send)
            return
        connect = await receive()
        await send({"type": "websocket.accept"})
        try:
            async with asyncio.timeout(self._timeout_s):
                first = await receive()
        except TimeoutError:
            reason = f"no frame within {self._timeout_s:g} s"
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
            return
        if first["type"] == "websocket.disconnect":
            return
        early = [first, connect]

        # Plain functions that return awaitables: another coroutine for each frame would cost time.
        def receive_again() -> Awaitable[Event]:
            return _at_once(early.pop()) if early else receive()

        def send_after_accept(event: Event) -> Awaitable[None]:
            return _at_once(None) if event["type"] == "websocket.accept" else send(event)

        await self._application(scope, receive_again, send_after_accept)


async def _at_once(value: Value) -> Value:
    return value


def wanted_session(scope: Event) -> str:
    """Return the session that a websocket wants to join by `/ws?session_id=`, or ""."""
    if not scope["path"].endswith("/ws"):
        return ""
    query: bytes = scope["query_string"]
    return parse_qs(query.decode("latin-1")).get("session_id", [""])[-1]


async def refuse(scope: Event, receive: Receive, send: Send, status: int, detail: str) -> None:
    """Reply with a status and the reason, and close the connection.

    The rest of a body is read and dropped for a while: a connection that is closed with unread bytes is reset, and the
    peer might never read the reply. After 408 nothing is read, because the peer has been too slow.
    """
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if scope["type"] == "websocket":
        await _refuse_websocket(scope, receive, send, status, headers, body)
        return
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.0 if status == 408 else LINGER_S):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _refuse_websocket(
    scope: Event, receive: Receive, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    await receive()  # websocket.connect
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            await receive()  # the event that ends the exchange
            await receive()  # the end of the connection; uvicorn logs an error when the application returns before it


_TOO_LONG = f"The body is longer than {MAX_BODY_BYTES} bytes."


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body as one event, and then the events of the original `receive`."""
    whole: list[Event] = [{"type": "http.request", "body": body, "more_body": False}]

    def receive_again() -> Awaitable[Event]:
        return _at_once(whole.pop()) if whole else receive()

    return receive_again


def _values(scope: Event, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _host_of_origin(origin: str) -> str:
    """Return the host of an `Origin`; empty for `null` and for what is not an origin."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return host_name(parts.netloc) if parts.scheme in ("http", "https") else ""
