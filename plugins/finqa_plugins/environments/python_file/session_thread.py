"""A thread for the calls of one session, so that a slow tool does not block other episodes.

Each session has one thread for all its plain calls, from the constructor on: objects such as SQLite connections can
only be used in the thread that made them.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable
from typing import Any

_Work = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class SessionThread:
    """Runs calls one after the other in a thread, which starts with the first call."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._started = False

    async def run(self, call: Callable[[], Any], timeout_s: float) -> Any:
        """Return the result of a call; if that is awaitable, it is awaited in the event loop.

        Raises:
            TimeoutError: The call takes longer than `timeout_s` seconds. It continues in its thread.
        """
        async with asyncio.timeout(timeout_s):
            result = await self._in_thread(call)
            return await result if inspect.isawaitable(result) else result

    def close(self) -> None:
        """End the thread once its calls have ended. Idempotent."""
        self._work.put(None)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        if not self._started:
            self._started = True
            # a daemon thread, because the interpreter would wait for a pool thread with a hanging call
            threading.Thread(target=_serve, args=(self._work,), daemon=True).start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._work.put((call, loop, future))
        return await future


def _serve(work: queue.SimpleQueue[_Work | None]) -> None:
    while (item := work.get()) is not None:
        call, loop, future = item
        result: Any = None
        error: BaseException | None = None
        try:
            result = call()
        except StopIteration as stop:  # cannot be raised into a future
            error = RuntimeError(f"StopIteration: {stop.value}").with_traceback(stop.__traceback__)
        except BaseException as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # nothing waits for it any more
        if inspect.iscoroutine(result):
            result.close()
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, Exception):
        future.set_exception(error)
    else:  # SystemExit and similar exceptions would end the event loop
        named = RuntimeError(f"{type(error).__name__}: {error}")
        future.set_exception(named.with_traceback(error.__traceback__))
