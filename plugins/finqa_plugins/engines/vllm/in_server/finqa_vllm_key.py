"""Requires the API key on every path of a server: other users of its machine reach it, also on loopback.

vLLM 0.32 requires it below /v1, /v2, /inference and /cohere only (vllm/entrypoints/serve/middleware/authenticate.py).
Anyone could generate under /invocations, and put the server to sleep or replace its weights by its development routes.
This module runs outside of packages and imports only the standard library.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class RequireKey:
    """ASGI middleware that requires the key in the environment variable VLLM_API_KEY."""

    def __init__(self, app: App) -> None:
        """Guard an application."""
        self._app = app
        self._expected = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer with 401, or close a websocket, if the key is missing or wrong."""
        if scope["type"] == "lifespan" or self._has_key(scope.get("headers", ())):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error": "Unauthorized"}'})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _has_key(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        given = [value for name, value in headers if name.lower() == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)
