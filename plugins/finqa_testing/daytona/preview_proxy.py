"""Preview URLs: forwards HTTP and WebSocket connections to the servers of sandboxes."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from finqa_testing.daytona.account import Account
from finqa_testing.daytona.http_service import HOST, LoopbackConnection, Refusal
from finqa_testing.daytona.loopback_sandboxes import LoopbackSandbox

PREFIX = "/preview/"
TOKEN_HEADER = "x-daytona-preview-token"


class _End(asyncio.Protocol):
    """One end of a connection, which writes the data that it receives to the other end."""

    def __init__(self, link: PreviewLink, other: asyncio.Transport) -> None:
        self._link = link
        self._other = other

    def data_received(self, data: bytes) -> None:
        self._other.write(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _: Exception | None) -> None:
        self._link.close()

    def pause_writing(self) -> None:
        self._other.pause_reading()

    def resume_writing(self) -> None:
        if not self._link.frozen:
            self._other.resume_reading()


class PreviewLink:
    """A preview connection between a client and the server of a sandbox."""

    def __init__(
        self, proxy: PreviewProxy, sandbox: LoopbackSandbox, connection: LoopbackConnection, *, upgraded: bool
    ) -> None:
        self._proxy = proxy
        self._sandbox = sandbox
        self._upgraded = upgraded
        self._connection = connection
        self._client = connection.transport
        self._server: asyncio.Transport | None = None
        self._closed = False
        self.frozen = False
        sandbox.links.add(self)
        proxy.links.add(self)
        if upgraded:
            proxy.account.counters.upgraded()

    async def open(self, port: int, first: bytes) -> None:
        """Connects to the server, sends the first bytes and forwards all later data in both directions.

        Raises:
            OSError: The server does not answer.
        """
        client = self._client
        server, _ = await asyncio.get_running_loop().create_connection(lambda: _End(self, client), HOST, port)
        self._server = server
        if self._closed or client.is_closing():
            self.abort()
            return
        server.write(first)
        self._connection.detach().set_protocol(_End(self, server))
        if self.frozen:
            server.pause_reading()
        else:
            client.resume_reading()

    def freeze(self) -> None:
        """Stops all data."""
        self.frozen = True
        for transport in self._ends():
            transport.pause_reading()

    def thaw(self) -> None:
        """Forwards data again."""
        self.frozen = False
        if self._server is not None:
            for transport in self._ends():
                transport.resume_reading()

    def close(self) -> None:
        """Closes both ends after data that was received is delivered."""
        self._forget()
        for transport in self._ends():
            transport.close()

    def abort(self) -> None:
        """Resets both ends."""
        self._forget()
        for transport in self._ends():
            transport.abort()

    def _ends(self) -> list[asyncio.Transport]:
        ends = (self._client, self._server)
        return [transport for transport in ends if transport is not None and not transport.is_closing()]

    def _forget(self) -> None:
        if not self._closed:
            self._closed = True
            self._sandbox.links.discard(self)
            self._proxy.links.discard(self)
            if self._upgraded:
                self._proxy.account.counters.websockets_open -= 1


class PreviewProxy:
    """The ASGI application for all paths below `/preview/`.

    After the head of a request, data is forwarded without being parsed: frames of a WebSocket, their compression and
    their close codes arrive as they were sent, and a freeze or failure of the sandbox affects the sockets directly.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self.links: set[PreviewLink] = set()

    async def close(self) -> None:
        """Resets every connection."""
        for link in list(self.links):
            link.abort()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Connects a request to the server of its sandbox, or refuses it."""
        request, account = Request(scope, receive), self.account
        link: PreviewLink | None = None
        try:
            body = await request.body()
            sandbox, port, path = self._resolve(request)
            upgraded = "websocket" in request.headers.get("upgrade", "").lower()
            link = PreviewLink(self, sandbox, request.state.connection, upgraded=upgraded)
            await asyncio.sleep(account.random.seconds("proxy", account.config.latency.proxy))
            if sandbox.frozen:
                await sandbox.thawed.wait()
            if port not in sandbox.ports or account.random.hit("proxy_error", account.config.faults.proxy_error):
                raise Refusal(502, "Bad gateway: the sandbox does not answer on this port")
            await link.open(sandbox.ports[port], _head(request, path, body) + body)
            account.counters.request("PREVIEW", 200)
        except (Refusal, OSError) as error:
            refusal = error if isinstance(error, Refusal) else Refusal(502, f"Bad gateway: {error}")
            refusal.headers = {"Connection": "close"}
            account.counters.request("PREVIEW", refusal.status)
            await refusal.response(scope["path"])(scope, receive, send)
            if link is not None:
                link.close()
        except asyncio.CancelledError:
            request.state.connection.transport.abort()
            raise

    def _resolve(self, request: Request) -> tuple[LoopbackSandbox, int, str]:
        """Returns the sandbox, the port and the server's path for a preview URL.

        The token is in the path (`/preview/TOKEN/...`, a signed URL) or in a header.
        """
        token, _, path = request.scope["path"].removeprefix(PREFIX).partition("/")
        token = request.headers.get(TOKEN_HEADER, token)
        sandbox_id, port, end = self.account.tokens.get(token, ("", 0, 0.0))
        if end <= time.time():
            raise Refusal(401, "The preview URL has expired or was never given out")
        sandbox = self.account.sandboxes.get(sandbox_id)
        if sandbox is None or sandbox.ended:
            raise Refusal(404, "The sandbox does not exist")
        if sandbox.state not in ("started", "error") and not sandbox.dead:
            raise Refusal(400, f"The sandbox is not running: {sandbox.state}")
        query = request.scope["query_string"].decode("latin-1")
        return sandbox, port, f"/{path}?{query}" if query else f"/{path}"


def _head(request: Request, path: str, body: bytes) -> bytes:
    """Returns the head for the server. A connection is used for one request only, so its other data is not parsed."""
    headers = {name: value for name, value in request.headers.items() if name != TOKEN_HEADER}
    if headers.pop("transfer-encoding", ""):  # uvicorn has joined the chunks
        headers["content-length"] = str(len(body))
    if "upgrade" not in headers:
        headers["connection"] = "close"
    lines = [f"{request.method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
