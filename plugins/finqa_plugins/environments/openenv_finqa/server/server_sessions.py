"""Sessions that a websocket can join, which clients of openenv 0.10 need.

Such a client makes a session by `openenv/session/create` on `/mcp`, joins it by `/ws?session_id=` for reset, step and
state, and calls tools on `/mcp`. openenv-core 0.3.0 ignores the query, so reset and tools would be in two sessions.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any
from urllib.parse import parse_qs

from openenv.core.env_server.http_server import HTTPEnvServer

from finqa_plugins.environments.openenv_finqa.server.quiet import Application, Event, Receive, Send

_wanted: ContextVar[str] = ContextVar("_wanted", default="")


class JoinableSessions(HTTPEnvServer):  # type: ignore[misc]  # openenv-core ships no types
    """A session that was joined outlives the websocket: closing it is its client's doing, or it expires."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._joined: set[str] = set()

    async def _create_session(self) -> tuple[str, Any]:
        wanted = _wanted.get()
        if not wanted:
            session: tuple[str, Any] = await super()._create_session()
            return session
        async with self._session_lock:
            environment = self._sessions.get(wanted)
            if environment is None:
                raise LookupError(f"Unknown session_id: {wanted[:64]}")
            if wanted in self._joined:
                raise RuntimeError(f"Session {wanted} has a websocket already")
            self._joined.add(wanted)
        self._update_session_activity(wanted)
        return wanted, environment

    async def _destroy_session(self, session_id: str) -> None:
        self._joined.discard(session_id)
        if _wanted.get() != session_id:
            await super()._destroy_session(session_id)


class SessionInAddress:
    """ASGI middleware: notes which session a websocket wants to join, for the task that serves it."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """One connection or request."""
        if scope["type"] == "websocket" and scope["path"].endswith("/ws"):
            query = parse_qs(scope["query_string"].decode("latin-1"))
            _wanted.set(query.get("session_id", [""])[-1])
        await self._application(scope, receive, send)
