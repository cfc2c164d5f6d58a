"""Notifies a client that its call waits in a queue of this server, so that the time is not counted against its policy.

A client that sends the header `X-OpenEnv-Queue-Notices: 1` gets, between a request and its reply, frames
`{"type": "queue", "data": {"waiting": true, "queued_s": 1.5}}`: one when the call has waited 0.1 s, further ones
while it waits, and one with `"waiting": false` when its work begins. Other clients see OpenEnv's frames only.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

FIRST_NOTICE_S = 0.1
INTERVAL_S = 5.0
HEADER = (b"x-openenv-queue-notices", b"1")

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Event, Receive, Send], Awaitable[None]]

_send: ContextVar[Send | None] = ContextVar("_send", default=None)


class QueueNotices:
    """ASGI middleware that stores how to send frames to a client that wants notices, for the task that serves it."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        wanted = scope["type"] == "websocket" and HEADER in [tuple(header) for header in scope["headers"]]
        _send.set(send if wanted else None)
        await self._application(scope, receive, send)


async def wait_in_queue(started: asyncio.Event) -> float:
    """Wait until the work begins; return the seconds waited. Meanwhile the client of this task gets notices."""
    began = time.monotonic()
    patience, announced = FIRST_NOTICE_S, False
    while True:
        try:
            async with asyncio.timeout(patience):
                await started.wait()
        except TimeoutError:
            await _notify(True, time.monotonic() - began)
            patience, announced = INTERVAL_S, True
        else:
            break
    queued_s = time.monotonic() - began
    if announced:
        await _notify(False, queued_s)
    return queued_s


async def _notify(waiting: bool, queued_s: float) -> None:
    send = _send.get()
    if send is not None:
        frame = {"type": "queue", "data": {"waiting": waiting, "queued_s": round(queued_s, 3)}}
        await send({"type": "websocket.send", "text": json.dumps(frame)})
