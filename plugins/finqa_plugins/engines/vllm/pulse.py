"""Whether a server lives: it answers, and while requests wait it makes tokens."""

from __future__ import annotations

import time
from collections.abc import Callable

from pydantic import SecretStr

from finqa_plugins.engines._http.config import ServerConfig
from finqa_plugins.engines._http.transport import PassingError, Transport

_COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total")
"""Prometheus counters of vLLM that grow with its work (vllm/v1/metrics/loggers.py)."""

_LONGEST_STEP = 0.6
"""Of the patience, between two readings of the clock: a quarter each for answer and counters, and a pause."""


class Pulse:
    """Looks at one server, on connections of its own: those of the requests may all be taken.

    Args:
        connection: The server.
        key: Of the server.
        busy: Whether requests are under way.
        patience_s: Longest silence of a living server.
    """

    def __init__(
        self, connection: ServerConfig, key: SecretStr, *, busy: Callable[[], bool], patience_s: float
    ) -> None:
        self._transport = Transport(connection, key)
        self._busy = busy
        self._patience_s = patience_s
        self._work: float | None = None
        self._watched_s = 0.0
        self.forget()

    def forget(self) -> None:
        """A server starts, so its silence begins now."""
        self._seen = time.monotonic()
        self._answered = self._worked = self._watched_s

    def heard(self) -> None:
        """A completion came: a server that is out of breath may have no time for looks, but it lives."""
        self._answered = self._worked = self._now()

    async def answers(self, timeout_s: float) -> bool:
        """Whether it says now that it is well. Never raises."""
        try:
            return (await self._transport.send("GET", "/health", timeout_s=timeout_s, root=True)).status == 200
        except PassingError:
            return False

    async def look(self) -> str:
        """What is wrong with it; empty when nothing is. A server that is out of breath is given `patience_s`."""
        now = self._now()
        if not await self.answers(self._patience_s / 4):
            silent = self._now() - self._answered
            return f"it has not answered for {silent:.0f} s" if silent >= self._patience_s else ""
        self._answered = now
        work = await self._work_done()
        # Its API may answer while the process that computes hangs.
        if work is None or work != self._work or not self._busy():
            self._work, self._worked = work, now
        idle = now - self._worked
        return f"it has made no token for waiting requests for {idle:.0f} s" if idle >= self._patience_s else ""

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    def _now(self) -> float:
        """Seconds on a clock that runs while we watch. What our own event loop was busy is no silence of the server."""
        now = time.monotonic()
        self._watched_s += min(now - self._seen, self._patience_s * _LONGEST_STEP)
        self._seen = now
        return self._watched_s

    async def _work_done(self) -> float | None:
        try:
            answer = await self._transport.send("GET", "/metrics", timeout_s=self._patience_s / 4, root=True)
        except PassingError:
            return None
        lines = [line for line in answer.data.decode(errors="replace").splitlines() if line.startswith(_COUNTERS)]
        try:
            return sum(float(line.rpartition(" ")[2]) for line in lines) if lines else None
        except ValueError:
            return None
