"""Counts what each peer of the server has open, in one place for the HTTP protocol and the application."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from finqa_plugins.environments.openenv_finqa.server.server_limits import MAX_BODIES_BYTES, ServerLimits


class Waiting(Protocol):
    """A connection that waits for a request, and can be closed while it waits."""

    def give_way(self) -> None:
        """Close the connection."""


class Peers:
    """The peers of one server process: their connections, which of them wait for a request, and their memory.

    A peer is what `peer_of` returns.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._most = limits.connections_per_peer
        self._held: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        self._waiting: dict[str, dict[Waiting, None]] = {}

    def enter(self, peer: str) -> bool:
        """Count a connection; return False if the peer has too many.

        If the peer has as many as it may, its oldest connection that waits for a request is closed for the new one. So
        half-open connections cannot block useful ones of the same peer.
        """
        if self._open[peer] >= self._most:
            oldest = next(iter(self._waiting.get(peer, ())), None)
            if oldest is None:
                return False
            self.stop_waiting(peer, oldest)
            self.leave(peer)
            oldest.give_way()
        self._open[peer] += 1
        return True

    def leave(self, peer: str) -> None:
        """Stop counting a connection that `enter` counted."""
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]

    def wait(self, peer: str, connection: Waiting) -> None:
        """Note that a connection waits for a request."""
        self._waiting.setdefault(peer, {})[connection] = None

    def stop_waiting(self, peer: str, connection: Waiting) -> None:
        """Note that the connection no longer waits. Idempotent."""
        waiting = self._waiting.get(peer)
        if waiting is not None:
            waiting.pop(connection, None)
            if not waiting:
                del self._waiting[peer]

    def hold(self, peer: str, size: int) -> bool:
        """Count bytes of a body or frame that is still incomplete; return False and count none if they are too many."""
        if self._held[peer] + size > MAX_BODIES_BYTES:
            return False
        if size:
            self._held[peer] += size
        return True

    def release(self, peer: str, size: int) -> None:
        """Stop counting bytes that `hold` counted."""
        self._held[peer] -= size
        if not self._held[peer]:
            del self._held[peer]
