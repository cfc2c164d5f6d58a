"""Runs the queries of all sessions, such that no query of a session delays those of others.

1. A query that can be short runs at once in the server's own thread, for some milliseconds at most. Sessions whose last
   query was longer skip this step, and all sessions skip it while such tries have taken more than a tenth of the time.
2. Otherwise it runs in a process for short queries, again with little time and memory.
3. A query that needs more runs in one of a few processes for long queries, with the full budget.

Both kinds of processes have a fair queue. The reply does not depend on where a query runs. To need more than the full
budget is an error of the query: the reply reports it, and the episode continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass

from finqa_plugins.environments.openenv_finqa.server.queue_notices import wait_in_queue
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotReader
from finqa_plugins.environments.openenv_finqa.server.sql_execution import QueryRunner
from finqa_plugins.environments.openenv_finqa.server.sql_worker import QueryRequest, WorkerOptions
from finqa_plugins.environments.openenv_finqa.server.worker_pool import WorkerPool

SHORT_WORKERS = 1
MAX_FULL_WORKERS = 4
QUICK_S = 0.001
"""Seconds of the server's thread that are not charged to `QuickAllowance`."""

QUICK_SHARE = 0.1
"""Share of the server's thread for queries that take longer than `QUICK_S`."""
QUICK_STORE_S = 0.05
"""Largest unused time of that share that can be saved, in seconds."""


@dataclass(eq=False, slots=True)
class SqlSession:
    """What is known of one session's queries.

    Attributes:
        queued_s: Seconds that the latest query waited for its turn.
        slow: Whether the latest query took longer than the server's thread allows.
    """

    queued_s: float = 0.0
    slow: bool = False


class SqlService:
    """Runs the queries of one server process.

    Args:
        snapshot: The tables.
        joins: Whether a query sees all tables of its company, not only the one that the call names.
        hints: Whether replies to common mistakes end with a line of advice.
    """

    def __init__(self, snapshot: SnapshotReader, *, joins: bool = False, hints: bool = False) -> None:
        self._runner = QueryRunner(snapshot, joins=joins, hints=hints)
        self._allowance = QuickAllowance()
        self._short = WorkerPool(WorkerOptions("short", joins, hints), SHORT_WORKERS)
        self._full = WorkerPool(WorkerOptions("full", joins, hints), full_workers())

    async def run(self, session: SqlSession, company: str, table: str, query: str) -> str:
        """Return the reply to a query: rows as JSON, or a text that begins with `Error`. `table` must exist.

        Raises:
            OSError: No process can be started.
            WorkerFrozenError: The machine does not run the processes for queries.
        """
        if self._runner.is_empty(company, table) or (not session.slow and self._allowance.left()):
            reply = self._run_here(session, company, table, query)
            if reply is not None:
                return reply
        images = self._runner.images(self._runner.scope(company, table))
        request = QueryRequest(company, table, query, images)
        reply = await self._run_in(self._short, session, request)
        session.slow = reply is None
        if reply is None:
            reply = await self._run_in(self._full, session, request)
        assert reply is not None, "the full budget is the last"
        return reply

    def _run_here(self, session: SqlSession, company: str, table: str, query: str) -> str | None:
        began, used = time.monotonic(), time.thread_time()
        reply = self._runner.run_quickly(company, table, query)
        used = time.thread_time() - used
        # A failed try is charged with the wall time that others waited for it. An answered query is charged with its
        # processor time only, because the machine may have done other work meanwhile.
        self._allowance.charge(used if reply is not None or used <= QUICK_S else time.monotonic() - began)
        if reply is not None or used > QUICK_S:
            session.slow = reply is None
        return reply

    async def _run_in(self, pool: WorkerPool, session: SqlSession, request: QueryRequest) -> str | None:
        loop, started = asyncio.get_running_loop(), asyncio.Event()

        def start() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(started.set)

        running = pool.submit(session, request, start)
        try:
            session.queued_s += await wait_in_queue(started)
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            running.cancel()
            raise


class QuickAllowance:
    """The time that the server's thread may spend on queries longer than `QUICK_S`; see `QUICK_SHARE`."""

    def __init__(self) -> None:
        self._store_s = QUICK_STORE_S
        self._at = time.monotonic()

    def left(self) -> bool:
        """Return whether another try may be made."""
        now = time.monotonic()
        self._store_s = min(QUICK_STORE_S, self._store_s + (now - self._at) * QUICK_SHARE)
        self._at = now
        return self._store_s > 0

    def charge(self, seconds: float) -> None:
        """Charge the seconds that a query took."""
        self._store_s -= max(0.0, seconds - QUICK_S)


def full_workers() -> int:
    """Return the number of processes for long queries: one for each processor, at most four."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MAX_FULL_WORKERS, processors)
