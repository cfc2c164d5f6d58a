"""A small HTTP/1.1 server on asyncio protocols. Handlers may also cut, hang or take over their connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable

from finqa_cli.testing.daytona.http_messages import (
    Cut,
    Head,
    MalformedRequest,
    Refusal,
    Reply,
    Request,
    take_body,
    take_head,
)

HOST = "127.0.0.1"
MAX_WAITING = 1024 * 1024
Handler = Callable[[Request, asyncio.Event], Awaitable[Reply]]
Takeover = Callable[[Head, asyncio.Transport, bytes], bool]

_log = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """One client. Requests are answered one after the other; bytes that come meanwhile wait."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._buffer = bytearray()
        self._head: Head | None = None
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport
        self._gone = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's callback."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._listener.transports.add(transport)

    def data_received(self, data: bytes) -> None:
        """Asyncio's callback."""
        self._buffer += data
        if self._task is None:
            self._proceed()
        elif len(self._buffer) > MAX_WAITING:
            self._transport.pause_reading()

    def connection_lost(self, _: Exception | None) -> None:
        """Asyncio's callback. The request that is being answered goes on, as it does at a real service."""
        self._gone.set()
        self._writable.set()
        self._listener.transports.discard(self._transport)

    def pause_writing(self) -> None:
        """Asyncio's callback."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Asyncio's callback."""
        self._writable.set()

    def _proceed(self) -> None:
        try:
            if self._head is None:
                self._head = take_head(self._buffer)
                if self._head is not None and self._listener.takeover(self._head, self._transport, bytes(self._buffer)):
                    self._listener.transports.discard(self._transport)
                    return
            if self._head is None or (body := take_body(self._head, self._buffer)) is None:
                return
        except MalformedRequest as error:
            self._transport.write(Refusal(400, str(error)).reply("").encoded())
            self._transport.close()
            return
        request, self._head = Request(self._head, body), None
        self._task = asyncio.get_running_loop().create_task(self._answer(request))
        self._listener.tasks.add(self._task)
        self._task.add_done_callback(self._listener.tasks.discard)

    async def _answer(self, request: Request) -> None:
        try:
            reply = await self._reply(request)
        except Cut:
            self._transport.abort()
            return
        if self._gone.is_set():
            return
        self._transport.write(reply.encoded(request.head.method))
        if reply.stream is not None:
            await self._send(reply)
        if request.head.headers.get("connection", "").lower() == "close":
            self._transport.close()
            return
        self._task = None
        self._transport.resume_reading()
        if self._buffer:
            self._proceed()

    async def _reply(self, request: Request) -> Reply:
        try:
            return await self._listener.handler(request, self._gone)
        except Refusal as refusal:
            return refusal.reply(request.head.path)
        except Cut:
            raise
        except Exception:
            _log.exception("%s %s failed", request.head.method, request.head.path)
            return Refusal(500, "A bug of the loopback Daytona; its log says more").reply(request.head.path)

    async def _send(self, reply: Reply) -> None:
        assert reply.stream is not None
        async for chunk in reply.stream:
            await self._writable.wait()
            if self._gone.is_set():
                return
            if chunk:
                self._transport.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        self._transport.write(b"0\r\n\r\n")


class Listener:
    """Listens on 127.0.0.1 until it is closed."""

    def __init__(self, handler: Handler, takeover: Takeover) -> None:
        self.handler = handler
        self.takeover = takeover
        self.transports: set[asyncio.Transport] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        """Starts listening and returns the port; 0 picks a free one.

        Raises:
            OSError: The port is taken.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), HOST, port, backlog=4096, ssl=tls)
        address: tuple[str, int] = self._server.sockets[0].getsockname()
        return address[1]

    async def close(self) -> None:
        """Stops listening, drops every connection and ends every handler."""
        if self._server is None:
            return
        self._server.close()
        for transport in list(self.transports):
            transport.abort()
        for task in list(self.tasks):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None
