"""Sessions of the server: limited for each peer, and joined by websockets.

A client of openenv 0.10 makes a session by `openenv/session/create` on `/mcp`, joins it by `/ws?session_id=` for reset,
step and state, and calls tools on `/mcp`. openenv-core 0.3 ignores the query, so reset and tools would be in two
sessions: `JoinableSessions` adds what it lacks.
"""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from typing import Any

from finqa_plugins.environments.openenv_finqa.server.openenv_names import (
    HAS_TASKS,
    HTTPEnvServer,
    SessionCapacityError,
)
from finqa_plugins.environments.openenv_finqa.server.server_limits import peer_of
from finqa_plugins.environments.openenv_finqa.server.server_middlewares import (
    Application,
    Event,
    Receive,
    Send,
    wanted_session,
)

MAX_SESSIONS = 4096
LONGEST_ECHO = 64
_wanted: ContextVar[str] = ContextVar("_wanted", default="")
_peer: ContextVar[str] = ContextVar("_peer", default="")


class PeerSessions(HTTPEnvServer):  # type: ignore[misc]  # OpenEnv ships no types
    """OpenEnv's server; one peer may have at most `per_peer` sessions, more are refused as by a full server."""

    def __init__(self, *arguments: Any, per_peer: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._per_peer = per_peer
        self._peers: dict[str, str] = {}
        self._made: Counter[str] = Counter()

    async def _create_session(self) -> tuple[str, Any]:
        peer = _peer.get()
        if self._made[peer] >= self._per_peer or len(self._peers) >= 2 * MAX_SESSIONS:
            self._forget_ended()
        if self._made[peer] >= self._per_peer:
            message = f"This peer has {self._per_peer} sessions, as many as it may have."
            raise SessionCapacityError(self._made[peer], self._per_peer, message)
        self._made[peer] += 1
        try:
            session_id, environment = await super()._create_session()
        except BaseException:
            self._made[peer] -= 1
            raise
        self._peers[session_id] = peer
        return session_id, environment

    async def _destroy_session(self, session_id: str) -> None:
        await super()._destroy_session(session_id)
        self._release(session_id)

    def _release(self, session_id: str) -> None:
        peer = self._peers.pop(session_id, None)
        if peer is not None:
            self._made[peer] -= 1
            if not self._made[peer]:
                del self._made[peer]

    def _forget_ended(self) -> None:
        """Release sessions that a client has closed on `/mcp`, which OpenEnv does not report."""
        for session_id in [each for each in self._peers if each not in self._sessions]:
            self._release(session_id)


class JoinableSessions(PeerSessions):
    """The sessions of openenv-core 0.3, which a websocket can join; a joined session outlives the websocket."""

    def __init__(self, *arguments: Any, per_peer: int, **options: Any) -> None:
        super().__init__(*arguments, per_peer=per_peer, **options)
        self._joined: set[str] = set()

    async def _create_session(self) -> tuple[str, Any]:
        wanted = _wanted.get()
        if not wanted:
            return await super()._create_session()
        async with self._session_lock:
            environment = self._sessions.get(wanted)
            if environment is None:
                raise LookupError(f"Unknown session_id: {wanted[:LONGEST_ECHO]}")
            if wanted in self._joined:
                raise RuntimeError(f"Session {wanted} already has an attached WebSocket")
            self._joined.add(wanted)
        self._update_session_activity(wanted)
        return wanted, environment

    async def _destroy_session(self, session_id: str) -> None:
        self._joined.discard(session_id)
        if _wanted.get() != session_id:
            await super()._destroy_session(session_id)


SESSIONS: type[PeerSessions] = PeerSessions if HAS_TASKS else JoinableSessions


class SessionOrigin:
    """ASGI middleware that stores the peer, and the session that its websocket wants to join, for the server."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        if scope["type"] in ("http", "websocket"):
            _peer.set(peer_of(scope.get("client")))
            _wanted.set(wanted_session(scope) if scope["type"] == "websocket" else "")
        await self._application(scope, receive, send)
