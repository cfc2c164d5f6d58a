"""Uvicorn's protocols with limits on unfinished heads of requests and unfinished frames of websockets.

Uvicorn limits neither the time nor the size of a head: a connection that sends half of one, or nothing, stays open. It
limits the size of a frame, but not how many unfinished frames a peer leaves in the memory of the server.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from finqa_plugins.environments.openenv_finqa.server.peers import Peers
from finqa_plugins.environments.openenv_finqa.server.server_limits import MAX_HEAD_BYTES, ServerLimits, peer_of

_STATUS = {
    408: b"HTTP/1.1 408 Request Timeout\r\n",
    429: b"HTTP/1.1 429 Too Many Requests\r\n",
    431: b"HTTP/1.1 431 Request Header Fields Too Large\r\n",
}
_END = b"connection: close\r\ncontent-length: 0\r\n\r\n"


def limited_protocols(limits: ServerLimits, of: Peers) -> tuple[type[asyncio.Protocol], type[asyncio.Protocol]]:
    """Return uvicorn's protocols of HTTP and of websockets with these limits; both count in `of`."""

    class Http(LimitedHttp):
        timeout_s = limits.header_timeout_s
        peers = of

    class WebSocket(LimitedWebSocket):
        peers = of

    return Http, WebSocket


class LimitedHttp(HttpToolsProtocol):
    """One connection, from its opening to its end or to its upgrade to a websocket.

    It waits for a request when it is opened and after each response. While it waits, one timer runs: uvicorn's own
    keep-alive timer ends with the first byte of a head.
    """

    timeout_s: ClassVar[float]
    peers: ClassVar[Peers]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._peer: str | None = None  # None if the connection does not count
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and wait for its first request."""
        super().connection_made(transport)
        peer = peer_of(self.client)
        if not self.peers.enter(peer):
            self._end(429)
            return
        self._peer = peer
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data, and check whether a request has started."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._timer is None:
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._end(431)

    def on_response_complete(self) -> None:
        """Wait for the next request, unless one is here already."""
        super().on_response_complete()
        if self.cycle.response_complete and self._peer is not None and not self.transport.is_closing():
            self._wait()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over; from here on the application counts it."""
        self._forget()
        super().handle_websocket_upgrade()

    def give_way(self) -> None:
        """Close the connection, which no longer counts; see `Peers.enter`."""
        self._peer = None
        self._end(429)

    def _wait(self) -> None:
        self._head_bytes = 0
        if self._peer is not None:
            self.peers.wait(self._peer, self)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self.timeout_s, self._end, 408)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._peer is not None:
            self.peers.stop_waiting(self._peer, self)

    def _forget(self) -> None:
        self._stop_waiting()
        if self._peer is not None:
            self.peers.leave(self._peer)
            self._peer = None

    def _end(self, status: int) -> None:
        """Close the connection; if a head has started, send the reason."""
        self._forget()
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        if self._head_bytes or status == 429:
            self.transport.write(_STATUS[status] + _END)
        self.transport.close()


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """One websocket. Bytes of unfinished frames and messages are counted for their peer."""

    peers: ClassVar[Peers]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._held = 0

    def data_received(self, data: bytes) -> None:
        """Parse the data, and count the unfinished rest; a connection that would need too much memory is closed."""
        super().data_received(data)
        unfinished = len(self.conn.reader.buffer)
        if self.frames:
            unfinished += sum(map(len, self.frames))
        if unfinished != self._held and not self._count(unfinished):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._count(0)
        super().connection_lost(exc)

    def _count(self, size: int) -> bool:
        peer = peer_of(self.client)
        self.peers.release(peer, self._held)
        self._held = size if self.peers.hold(peer, size) else 0
        return self._held == size
