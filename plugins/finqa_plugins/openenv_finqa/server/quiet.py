"""ASGI middleware: a broken frame is answered, and a client that hangs up leaves no traceback."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Event, Receive, Send], Awaitable[None]]

_NOT_JSON = "{"  # HTTPEnvServer answers INVALID_JSON to it and keeps the session


class QuietWebSockets:
    """Wraps an application's websocket side.

    openenv-core 0.3.0 ends the session on a frame that is valid JSON but no object, on binary frames and on JSON that
    is nested too deep, and raises out of the application when the peer is gone.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """One connection or request."""
        if scope["type"] != "websocket":
            await self._application(scope, receive, send)
            return
        gone = False

        async def receive_object() -> Event:
            nonlocal gone
            event = await receive()
            if event["type"] == "websocket.disconnect":
                gone = True
            elif event["type"] == "websocket.receive":
                text = event.get("text")
                return {"type": "websocket.receive", "text": text if _is_object(text) else _NOT_JSON}
            return event

        async def send_unless_gone(event: Event) -> None:
            nonlocal gone
            if gone:
                return
            try:
                await send(event)
            except (OSError, RuntimeError):  # the peer vanished while we were answering; receive will say so
                gone = True

        await self._application(scope, receive_object, send_unless_gone)


def _is_object(text: str | None) -> bool:
    if text is None:
        return False
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
