"""Keeps running sandboxes alive: renews addresses, signals activity, resets their time to live."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_cloud import REQUEST_TIMEOUT_S, Cloud
from finqa_plugins.sandboxes.daytona.daytona_sandbox import DaytonaSandbox, DaytonaSandboxBase

log = structlog.get_logger(__name__)

AT_ONCE = 20
TTL_MARGIN = 0.5
"""Share of a sandbox's time to live after which it is set again."""
RETRY_S = 30.0
_LONGEST_TICK_S = 5.0


@dataclass(slots=True)
class _Dates:
    """When a sandbox next needs each request, in seconds of the monotonic clock; for its address see `renew_at`."""

    touch_at: float
    extend_at: float


class Upkeep:
    """One background task for all sandboxes of a provider. For Daytona, traffic to their servers is no activity."""

    def __init__(self, cloud: Cloud, config: DaytonaSandboxConfig) -> None:
        self._cloud = cloud
        self._config = config
        self._sandboxes: dict[DaytonaSandboxBase, _Dates] = {}
        self._task: asyncio.Task[None] | None = None
        self._places = asyncio.Semaphore(AT_ONCE)
        self._tick_s = min(config.keepalive_s / 10, config.url_ttl_s / 20, _LONGEST_TICK_S)

    def add(self, sandbox: DaytonaSandboxBase) -> None:
        """Look after a sandbox from now on."""
        now = time.monotonic()
        self._sandboxes[sandbox] = _Dates(now + self._config.keepalive_s, now + self._ttl_s)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def remove(self, sandbox: DaytonaSandboxBase) -> None:
        """Stop looking after a sandbox."""
        self._sandboxes.pop(sandbox, None)

    async def close(self) -> None:
        """Ends the task. Idempotent."""
        self._sandboxes.clear()
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait({task})

    @property
    def _ttl_s(self) -> float:
        return self._config.ttl_minutes * 60 * TTL_MARGIN

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            now = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for sandbox, dates in list(self._sandboxes.items()):
                    if isinstance(sandbox, DaytonaSandbox) and sandbox.renew_at <= now:
                        sandbox.renew_at = now + RETRY_S  # a success sets a later time
                        group.create_task(self._do("renewing the address", sandbox, sandbox.renew_url))
                    if dates.touch_at <= now:
                        dates.touch_at = now + self._config.keepalive_s
                        group.create_task(self._do("showing activity", sandbox, partial(_touch, sandbox)))
                    if dates.extend_at <= now:
                        dates.extend_at = now + self._ttl_s
                        group.create_task(self._do("extending the life", sandbox, partial(self._extend, sandbox)))

    async def _extend(self, sandbox: DaytonaSandboxBase) -> None:
        await sandbox.remote.set_ttl(self._config.ttl_minutes, request_timeout=REQUEST_TIMEOUT_S)

    async def _do(self, what: str, sandbox: DaytonaSandboxBase, request: Callable[[], Awaitable[None]]) -> None:
        """Make a request, and only log a failure: the pool's health checks find out whether the sandbox still works."""
        async with self._places:
            if sandbox not in self._sandboxes:
                return
            try:
                await self._cloud.call(f"{what} of sandbox {sandbox.id}", request)
            except Exception as error:
                # Log: A request that keeps a Daytona sandbox alive failed.
                log.debug("upkeep failed", what=what, sandbox=sandbox.id, reason=str(error))


async def _touch(sandbox: DaytonaSandboxBase) -> None:
    await sandbox.remote.refresh_activity(request_timeout=REQUEST_TIMEOUT_S)
