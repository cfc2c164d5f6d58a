"""ASGI middleware: a broken frame is answered briefly, and a client that hangs up leaves no traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Event, Receive, Send], Awaitable[None]]

MAX_DEPTH = 64
LONGEST_ERROR = 2048
LONGEST_MESSAGE = 300
_NOT_JSON = "{"  # HTTPEnvServer answers INVALID_JSON to it and keeps the session
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class QuietWebSockets:
    """Wraps an application's websocket side.

    openenv-core 0.3.0 ends the session on a frame that is valid JSON but no object, on binary frames and on JSON that
    it cannot echo (nested too deep, or with half a surrogate pair), echoes what was wrong whatever its size, and raises
    out of the application when the peer is gone.
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
                return {"type": "websocket.receive", "text": _readable(event.get("text"))}
            return event

        async def send_unless_gone(event: Event) -> None:
            nonlocal gone
            if gone:
                return
            if event["type"] == "websocket.send":
                event = {**event, "text": _brief(event["text"])}
            try:
                await send(event)
            except (OSError, RuntimeError):  # the peer vanished while we were answering; receive will say so
                gone = True

        await self._application(scope, receive_object, send_unless_gone)


def _readable(text: str | None) -> str:
    """The frame as openenv-core can read and echo it."""
    try:
        frame = json.loads(text or "")
    except (ValueError, RecursionError):
        return _NOT_JSON
    if text is None or not isinstance(frame, dict):
        return _NOT_JSON
    if text.count("{") + text.count("[") > MAX_DEPTH and not _shallow(frame, MAX_DEPTH):
        return _NOT_JSON
    if _SURROGATE.search(text):
        return json.dumps(frame, ensure_ascii=False).encode("utf-8", "replace").decode()
    return text


def _shallow(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_shallow(item, levels - 1) for item in inner)


def _brief(text: str) -> str:
    """An error without the echo of what was wrong; any other frame as it is."""
    if len(text) <= LONGEST_ERROR or text.startswith('{"type":"observation"'):
        return text
    frame = json.loads(text)
    if frame.get("type") == "error":
        told = {key: str(frame["data"].get(key))[:LONGEST_MESSAGE] for key in ("message", "code")}
        return json.dumps({"type": "error", "data": told})
    reply = frame["data"] if frame.get("type") == "mcp" else frame
    if "error" not in reply and len(str(reply.get("id"))) <= LONGEST_MESSAGE:
        return text
    if "error" in reply:
        reply["error"] = {**reply["error"], "message": str(reply["error"].get("message"))[:LONGEST_MESSAGE]}
    if isinstance(reply.get("id"), str):
        reply["id"] = reply["id"][:LONGEST_MESSAGE]
    return json.dumps(frame)
