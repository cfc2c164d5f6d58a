"""Lets many pass, or one alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ReadersWriterLock:
    """Requests pass side by side; whoever must be alone waits for them, while later ones wait for him."""

    def __init__(self) -> None:
        self._readers = 0
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._writing = asyncio.Lock()

    @property
    def readers(self) -> int:
        """How many are inside now."""
        return self._readers

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """For as long as a request is under way."""
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
        """Once everybody has left, until the end of the context."""
        async with self._writing:
            self._open.clear()
            try:
                await self._empty.wait()
                yield
            finally:
                self._open.set()
