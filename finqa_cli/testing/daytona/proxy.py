"""Preview URLs: HTTP and WebSocket to the servers of boxes, byte by byte once the head is understood."""

from __future__ import annotations

import asyncio
import time

from finqa_cli.testing.daytona.account import Account
from finqa_cli.testing.daytona.http_messages import Head, Refusal
from finqa_cli.testing.daytona.listener import HOST
from finqa_cli.testing.daytona.loopback_sandboxes import Box

PREFIX = "/preview/"
TOKEN_HEADER = "x-daytona-preview-token"


class _End(asyncio.Protocol):
    """One end of a connection: what it receives is written to the other end."""

    def __init__(self, link: PreviewLink) -> None:
        self._link = link
        self.other: asyncio.Transport

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _: Exception | None) -> None:
        self._link.lost()

    def pause_writing(self) -> None:
        self.other.pause_reading()

    def resume_writing(self) -> None:
        if not self._link.frozen:
            self.other.resume_reading()


class PreviewLink:
    """An open preview connection between a client and the server of a box."""

    def __init__(self, proxy: PreviewProxy, box: Box, client: asyncio.Transport, *, upgraded: bool) -> None:
        self._proxy = proxy
        self._box = box
        self._upgraded = upgraded
        self._client = client
        self._server: asyncio.Transport | None = None
        self._closed = False
        self.frozen = False
        box.links.add(self)
        if upgraded:
            proxy.account.counters.upgraded()

    async def open(self, port: int, first: bytes) -> None:
        """Connects to the server and lets the bytes flow.

        Raises:
            OSError: The server does not answer.
        """
        near, far = _End(self), _End(self)
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: far, HOST, port)
        self._server = transport
        near.other, far.other = transport, self._client
        if self._closed or self._client.is_closing():
            self.abort()
            return
        transport.write(first)
        self._client.set_protocol(near)
        if self.frozen:
            transport.pause_reading()
        else:
            self._client.resume_reading()

    def freeze(self) -> None:
        """No byte passes any more."""
        self.frozen = True
        for transport in self._ends():
            transport.pause_reading()

    def thaw(self) -> None:
        """Bytes pass again."""
        self.frozen = False
        if self._server is not None:
            for transport in self._ends():
                transport.resume_reading()

    def lost(self) -> None:
        """One end is closed: what was received is still delivered, then the other end is closed too."""
        self._forget()
        for transport in self._ends():
            transport.close()

    def abort(self) -> None:
        """Resets both ends."""
        self._forget()
        for transport in self._ends():
            transport.abort()

    def _ends(self) -> list[asyncio.Transport]:
        ends = [self._client, *([self._server] if self._server is not None else [])]
        return [transport for transport in ends if not transport.is_closing()]

    def _forget(self) -> None:
        if not self._closed:
            self._closed = True
            self._box.links.discard(self)
            self._proxy.links.discard(self)
            if self._upgraded:
                self._proxy.account.counters.websockets_open -= 1


class PreviewProxy:
    """Answers everything below `/preview/`."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.links: set[PreviewLink] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def takeover(self, head: Head, client: asyncio.Transport, rest: bytes) -> bool:
        """Takes a preview connection over from the HTTP server; False for other requests."""
        if not head.path.startswith(PREFIX):
            return False
        client.pause_reading()
        task = asyncio.get_running_loop().create_task(self._connect(head, client, rest))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def close(self) -> None:
        """Resets every connection."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in list(self.links):
            link.abort()

    async def _connect(self, head: Head, client: asyncio.Transport, rest: bytes) -> None:
        upgraded = "websocket" in head.headers.get("upgrade", "").lower()
        link: PreviewLink | None = None
        try:
            box, port, path = self._resolve(head)
            link = PreviewLink(self, box, client, upgraded=upgraded)
            self.links.add(link)
            config = self.account.config
            await asyncio.sleep(self.account.dice.seconds("proxy", config.latency.proxy))
            if box.frozen:
                await box.thawed.wait()
            if port not in box.ports or self.account.dice.hit("proxy_error", config.faults.proxy_error):
                raise Refusal(502, "Bad gateway: the sandbox does not answer on this port")
            await link.open(box.ports[port], _forwarded(head, path, upgraded=upgraded) + rest)
            self.account.counters.request("PREVIEW", 200)
        except (Refusal, OSError) as error:
            refusal = error if isinstance(error, Refusal) else Refusal(502, f"Bad gateway: {error}")
            self.account.counters.request("PREVIEW", refusal.status)
            client.write(refusal.reply(head.path).encoded())
            client.close()
            if link is not None:
                link.lost()
        except asyncio.CancelledError:
            client.abort()
            raise

    def _resolve(self, head: Head) -> tuple[Box, int, str]:
        """The box, the port and the path behind a preview URL: signed (`/preview/TOKEN/...`) or with a token header."""
        token, _, path = head.path[len(PREFIX) :].partition("/")
        query = head.target[len(head.path) :]
        box_id, port, end = self.account.tokens.get(head.headers.get(TOKEN_HEADER, token), ("", 0, 0.0))
        if end <= time.time():
            raise Refusal(401, "The preview URL has expired or was never given out")
        box = self.account.boxes.get(box_id)
        if box is None or box.ended:
            raise Refusal(404, "The sandbox does not exist")
        if box.state not in ("started", "error") and not box.dead:
            raise Refusal(400, f"The sandbox is not running: {box.state}")
        return box, port, f"/{path}{query}"


def _forwarded(head: Head, path: str, *, upgraded: bool) -> bytes:
    """The head for the server. A plain request's connection serves it only, so that all else is plain bytes."""
    headers = {name: value for name, value in head.headers.items() if name != TOKEN_HEADER}
    if not upgraded:
        headers["connection"] = "close"
    lines = [f"{head.method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
