"""A readers-writer lock for asyncio: many readers at once, or one writer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ReadersWriterLock:
    """Readers run concurrently; a writer waits for them to leave, and later readers wait for the writer."""

    def __init__(self) -> None:
        self._readers = 0
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._writing = asyncio.Lock()

    @property
    def readers(self) -> int:
        """Number of readers that hold the lock."""
        return self._readers

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Holds the lock as a reader until the end of the context."""
        while not self._open.is_set():
            await self._open.wait()
        self._readers += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._empty.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Holds the lock as the only one, once all readers have left, until the end of the context."""
        async with self._writing:
            self._open.clear()
            try:
                await self._empty.wait()
                yield
            finally:
                self._open.set()
