"""A TCP proxy on loopback whose connections can be cut, slowed and silenced."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
CHUNK = 65_536
SLOW_CHUNK = 512
RESET = struct.pack("ii", 1, 0)
"""The option SO_LINGER with which a socket that is closed sends a reset and no end."""


class FaultyConnections:
    """Forwards every connection to one port of this machine; runs in its own thread.

    Attributes:
        port: Where it listens.
        delay_s: Seconds before each piece of `SLOW_CHUNK` bytes while it is slow; 0: as fast as it can.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self.delay_s = 0.0
        self._pass: asyncio.Event | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._over = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    def cut(self) -> int:
        """Resets every open connection; returns their number."""
        count = len(self._open) // 2
        self._do(self._cut)
        return count

    def silence(self) -> None:
        """Drop all traffic without closing connections; new connections are still accepted."""
        assert self._pass is not None
        self._do(self._pass.clear)

    def heal(self) -> None:
        """As fast and reliable as at first."""
        assert self._pass is not None
        self.delay_s = 0.0
        self._do(self._pass.set)

    def _do(self, action: Callable[[], object]) -> None:
        """Acts in the thread of the loop; done when this returns."""
        done = threading.Event()

        def act() -> None:
            try:
                action()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(act)
        done.wait()

    def _cut(self) -> None:
        for writer in self._open:
            with contextlib.suppress(OSError):  # it is closed already
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()

    async def _serve(self) -> None:
        self._pass = asyncio.Event()
        self._pass.set()
        server = await asyncio.start_server(self._connected, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        self._cut()
        for task in self._pumps:
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        self._open.add(writer)
        try:
            with contextlib.suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
                self._open.add(far_writer)
                try:
                    await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
                finally:
                    far_writer.transport.abort()
                    self._open.discard(far_writer)
        finally:
            writer.transport.abort()
            self._open.discard(writer)
            self._pumps.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._pass is not None
        while data := await reader.read(SLOW_CHUNK if self.delay_s else CHUNK):
            await self._pass.wait()
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
