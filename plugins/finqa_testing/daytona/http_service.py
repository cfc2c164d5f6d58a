"""HTTP of the loopback Daytona: Starlette handlers on uvicorn connections that handlers can drop or take over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

HOST = "127.0.0.1"
IDLE_S = 3600
Body = Mapping[str, object]
Endpoint = tuple[str, str, Callable[..., Awaitable[Response]]]
"""Method, path and handler; the handler is called with the request and the path's parameters by name."""


class Refusal(Exception):
    """Raised to answer a request with an error in Daytona's format."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers

    def response(self, path: str) -> Response:
        """Returns the answer to a request for this path."""
        body = {
            "statusCode": self.status,
            "error": HTTPStatus(self.status).phrase,
            "message": self.message,
            "path": path,
            "source": "DAYTONA_DAEMON" if path.startswith("/toolbox") else "DAYTONA_API",
        }
        return JSONResponse(body, self.status, self.headers)


class LostReply(Exception):
    """Raised to drop the connection instead of answering."""


class LoopbackConnection(HttpToolsProtocol):
    """A connection of uvicorn, available to handlers as `request.state.connection`."""

    def on_message_begin(self) -> None:
        """Makes the connection available to the handler; called by the parser."""
        super().on_message_begin()
        self.scope["state"]["connection"] = self

    def _unsupported_upgrade_warning(self) -> None:
        """Does nothing: an upgrade is an ordinary request here, which the preview proxy handles by `detach`."""

    def detach(self) -> asyncio.Transport:
        """Detaches uvicorn from the connection and returns its transport for another protocol."""
        self.connection_lost(ConnectionAbortedError("detached"))
        return self.transport


class DroppedConnection(Response):
    """Resets the connection instead of answering."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Resets the connection and waits until it is closed."""
        scope["state"]["connection"].transport.abort()
        await until_disconnected(receive)


async def until_disconnected(receive: Receive) -> None:
    """Waits until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class HttpServer:
    """Serves an ASGI application on 127.0.0.1 in the current event loop, without the signal handlers of uvicorn.

    A request whose client disconnects is still processed to its end, as by a real service.
    """

    def __init__(self, app: ASGIApp) -> None:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            scope["path"] = scope["raw_path"].decode("ascii")  # so that a quoted slash stays inside its path segment
            with contextlib.suppress(asyncio.CancelledError):  # raised by `close`; uvicorn would log it as an error
                await app(scope, receive, send)

        self._config = uvicorn.Config(
            serve,
            http=LoopbackConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            timeout_keep_alive=IDLE_S,
        )
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def open(self, port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        """Starts listening and returns the port; port 0 chooses a free one.

        Raises:
            OSError: The port is in use.
        """
        self._server = await asyncio.get_running_loop().create_server(
            lambda: LoopbackConnection(self._config, self._state, {}), HOST, port, backlog=4096, ssl=tls
        )
        address: tuple[str, int] = self._server.sockets[0].getsockname()
        return address[1]

    async def close(self) -> None:
        """Stops listening, resets every connection and cancels every handler."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for open_connection in self._state.connections:
            open_connection.transport.abort()
        await asyncio.sleep(0)  # so that the connections' callbacks run
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def json_body(request: Request) -> dict[str, Any]:
    """Returns the request's body, a JSON object.

    Raises:
        Refusal: The body is something else; status 400.
    """
    try:
        value = json.loads(await request.body() or b"{}")
    except ValueError:
        raise Refusal(400, "The body is no JSON") from None
    if not isinstance(value, dict):
        raise Refusal(400, "The body is no JSON object")
    return value


def text(body: Body, name: str) -> str:
    """Returns a string of a body, empty if it is missing; anything else is refused with status 400."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise Refusal(400, f"{name} must be a string")
    return value or ""


def texts(body: Body, name: str) -> dict[str, str]:
    """Returns a mapping of strings to strings, empty if it is missing; anything else is refused with status 400."""
    value = body.get(name) or {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for pair in value.items() for item in pair):
        raise Refusal(400, f"{name} must map strings to strings")
    return value


def texts_list(body: Body, name: str) -> tuple[str, ...]:
    """Returns a list of strings, empty if it is missing; anything else is refused with status 400."""
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Refusal(400, f"{name} must be a list of strings")
    return tuple(value)


def number(body: Body, name: str, default: int) -> int:
    """Returns an integer of a body, the default if it is missing; anything else is refused with status 400."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refusal(400, f"{name} must be an integer number")
    return value


def whole(value: str, name: str) -> int:
    """Returns a non-negative integer of a path or query; anything else is refused with status 400."""
    if not value.isdecimal():
        raise Refusal(400, f"{name} must be a non-negative integer")
    return int(value)


def queries(request: Request, name: str) -> list[str]:
    """Returns all values of a query parameter, which may also be separated by commas within one value."""
    return [part for value in request.query_params.getlist(name) for part in value.split(",") if value]
