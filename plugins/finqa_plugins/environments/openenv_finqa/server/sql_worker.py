"""A process that runs queries for the server, one at a time: `python -m ...sql_worker DESCRIPTOR ROLE PARENT OPTIONS`.

So memory and processor time can be limited per query, and a query that crashes SQLite ends only this process. The
process gets the tables with each query and has neither the snapshot nor its gold answers. It cannot write files, and it
ends with the process that started it.

A request is a pickled `QueryRequest`; the reply is JSON, because a pickle of a process that ran untrusted SQL is not
safe to load.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

from finqa_plugins.environments.openenv_finqa.server.server_snapshot import TableImage
from finqa_plugins.environments.openenv_finqa.server.sql_execution import FULL, QueryRunner
from finqa_plugins.environments.openenv_finqa.server.sql_guard import QueryBudget

Role = Literal["short", "full"]

SHORT = QueryBudget(steps=50_000, seconds=0.002, heap_bytes=4 * 2**20)
"""Budget of a query in a process for short queries. It is small, because all sessions may send queries at once."""

SHORT_IDLE_TABLES = 32
NICENESS = 5
"""Niceness of processes for long queries: the server and short queries get more of the processor."""

CPU_MARGIN_S = 4
"""Processor time beyond the budget after which the kernel ends this process: SQLite cannot be stopped in a function."""

_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """A query with the tables that it may see, by name."""

    company: str
    table: str
    query: str
    images: Mapping[str, TableImage]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of a worker process; see `QueryRunner`."""

    role: Role
    joins: bool
    hints: bool

    def arguments(self) -> list[str]:
        """Return command line arguments that `parse` reads."""
        return [self.role, str(int(self.joins)), str(int(self.hints))]

    @classmethod
    def parse(cls, role: str, joins: str, hints: str) -> WorkerOptions:
        """Read what `arguments` wrote."""
        return cls("full" if role == "full" else "short", joins == "1", hints == "1")


class _SentTables:
    """The tables that were sent with the current query."""

    def __init__(self) -> None:
        self.sent: Mapping[str, TableImage] = {}

    def tables(self, company: str) -> Mapping[str, tuple[str, str]] | None:
        """Return the tables that were sent; each has columns, so its physical name is not empty."""
        return {name: (name, "") for name in self.sent}

    def image(self, company: str, table: str) -> TableImage | None:
        """Return the table if it was sent."""
        return self.sent.get(table)


def main() -> None:
    """Serve until the other end is closed."""
    descriptor, parent, *words = sys.argv[1:]
    options = WorkerOptions.parse(*words)
    _confine(int(parent), options.role)
    _serve(Connection(int(descriptor)), options)


def _confine(parent: int, role: Role) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the server that started this process is gone")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if role == "full":
        os.nice(NICENESS)


def _serve(connection: Connection, options: WorkerOptions) -> None:
    tables = _SentTables()
    budget, idle_tables = (FULL, 0) if options.role == "full" else (SHORT, SHORT_IDLE_TABLES)
    runner = QueryRunner(
        tables, joins=options.joins, hints=options.hints, heap_bytes=budget.heap_bytes, idle_tables=idle_tables
    )
    while True:
        try:
            request: QueryRequest = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        began = time.thread_time()
        _limit_processor(budget)
        tables.sent = request.images
        if options.role == "full":
            reply: str | None = runner.run(request.company, request.table, request.query)
        else:
            reply = runner.attempt(request.company, request.table, request.query, budget)
        connection.send_bytes(json.dumps([reply, time.thread_time() - began]).encode())


def _limit_processor(budget: QueryBudget) -> None:
    limit = int(time.process_time() + budget.seconds) + CPU_MARGIN_S
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


if __name__ == "__main__":
    main()
