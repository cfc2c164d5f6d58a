"""The processes that run queries: what ends or freezes them, and what becomes of the query."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from fixtures.hostile_sql import ATTACKS, TABLE, random_statements
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_plugins.environments.openenv_finqa.server import worker_pool
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotReader
from finqa_plugins.environments.openenv_finqa.server.sql_execution import QueryRunner
from finqa_plugins.environments.openenv_finqa.server.sql_worker import QueryRequest, WorkerOptions
from finqa_plugins.environments.openenv_finqa.server.worker_pool import (
    ENDED_PROCESS,
    TOO_LONG,
    Worker,
    WorkerFrozenError,
    WorkerPool,
)

FULL = WorkerOptions("full", joins=False, hints=False)
SHORT = WorkerOptions("short", joins=False, hints=False)
PATIENCE_S = 60.0
SMALL = f"SELECT \"2024\" FROM {TABLE} WHERE line_item = 'total_revenues'"
ANSWER = '[{"2024":6118}]'
SLOW = ATTACKS["digits-long"]  # a second of the processor

Ask = Callable[..., "Future[str | None]"]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> SnapshotReader:
    return SnapshotReader(write_tiny_snapshot(tmp_path_factory.mktemp("pool")).path)


@pytest.fixture(scope="module")
def full() -> WorkerPool:
    return WorkerPool(FULL, 2)


@pytest.fixture
def ask(snapshot: SnapshotReader, full: WorkerPool) -> Ask:
    def submit(
        query: str, *, pool: WorkerPool = full, session: str = "", started: threading.Event | None = None
    ) -> Future[str | None]:
        images = QueryRunner(snapshot).images(("acme", (TABLE,)))
        return pool.submit(session, QueryRequest("acme", TABLE, query, images), (started or threading.Event()).set)

    return submit


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Worker]]:
    """The processes that are started during a test, in their order."""
    started: list[Worker] = []

    class Noted(Worker):
        def __init__(self, options: WorkerOptions) -> None:
            super().__init__(options)
            started.append(self)

    monkeypatch.setattr(worker_pool, "Worker", Noted)
    yield started
    for worker in started:
        worker.close()


def test_replies_are_those_of_the_server_itself(ask: Ask, snapshot: SnapshotReader) -> None:
    runner = QueryRunner(snapshot)
    queries = [query for query in random_statements(11, 200) if "\x00" not in query]
    for query, reply in [(query, ask(query)) for query in queries]:
        assert reply.result(PATIENCE_S) == runner.run("acme", TABLE, query), query


def test_joins_and_hints_are_those_of_the_server_itself(snapshot: SnapshotReader) -> None:
    runner = QueryRunner(snapshot, joins=True, hints=True)
    pool = WorkerPool(WorkerOptions("full", joins=True, hints=True), 1)
    for table in (TABLE, "balance_sheet"):
        for query in (
            f'SELECT i."2024" a, b."2024" b FROM {TABLE} i JOIN balance_sheet b WHERE b.line_item = \'total_assets\'',
            "SELECT nope FROM balance_sheet WHERE 1",
            f'SELECT "2020" FROM {TABLE} WHERE 1',
            "SELECT line_item FROM balance_sheet WHERE line_item = 'total assets'",
        ):
            images = runner.images(runner.scope("acme", table))
            reply = pool.submit("", QueryRequest("acme", table, query, images), lambda: None).result(PATIENCE_S)
            assert reply == runner.run("acme", table, query)


def test_the_budget_of_short_queries_gives_no_verdict(ask: Ask) -> None:
    pool = WorkerPool(SHORT, 1)
    for name in ("cross-join", "recursive", "recursive-rows", "scalar-chain", "digits-long"):
        assert ask(ATTACKS[name], pool=pool).result(PATIENCE_S) is None, name
    assert ask(SMALL, pool=pool).result(PATIENCE_S) == ANSWER


def test_memory_of_one_query_is_nothing_to_the_next(ask: Ask) -> None:
    for name in ("recursive-rows", "scalar-chain", "distinct", "in-chain") * 2:
        assert ask(ATTACKS[name]).result(PATIENCE_S) == "Error executing query: out of memory"
        assert ask(SMALL).result(PATIENCE_S) == ANSWER


def test_a_query_whose_process_is_killed_is_run_again(ask: Ask, workers: list[Worker]) -> None:
    started = threading.Event()
    reply = ask(SLOW, pool=WorkerPool(FULL, 1), started=started)
    assert started.wait(PATIENCE_S)
    while not workers:
        time.sleep(0.01)
    os.kill(workers[0].pid, signal.SIGKILL)
    assert reply.result(PATIENCE_S) == TOO_LONG
    assert len(workers) == 2


def test_a_query_that_ends_its_process_is_told_so(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool(FULL, 1)
    with monkeypatch.context() as patch:
        patch.setattr(worker_pool, "MODULE", "this")  # a program that says nothing and ends
        assert ask(SMALL, pool=pool).result(PATIENCE_S) == ENDED_PROCESS
        assert ask(SMALL, pool=WorkerPool(SHORT, 1)).result(PATIENCE_S) is None
    assert ask(SMALL, pool=pool).result(PATIENCE_S) == ANSWER


def test_the_kernels_limit_of_processor_time_is_the_querys_own_doing(ask: Ask, workers: list[Worker]) -> None:
    started = threading.Event()
    pool = WorkerPool(FULL, 1)
    assert ask(SMALL, pool=pool).result(PATIENCE_S) == ANSWER
    reply = ask(SLOW, pool=pool, started=started)
    assert started.wait(PATIENCE_S)
    os.kill(workers[0].pid, signal.SIGXCPU)
    assert reply.result(PATIENCE_S) == TOO_LONG
    assert len(workers) == 1
    assert ask(SMALL, pool=pool).result(PATIENCE_S) == ANSWER


def test_a_frozen_process_is_replaced(ask: Ask, workers: list[Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool(FULL, 1)
    assert ask(SMALL, pool=pool).result(PATIENCE_S) == ANSWER
    os.kill(workers[0].pid, signal.SIGSTOP)
    monkeypatch.setattr(worker_pool, "FROZEN_S", 3.0)
    assert ask(SMALL, pool=pool).result(PATIENCE_S) == ANSWER
    assert len(workers) == 2


def test_a_machine_that_runs_no_process_is_no_verdict_on_the_query(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "FROZEN_S", 0.001)
    with pytest.raises(WorkerFrozenError):
        ask(SLOW, pool=WorkerPool(FULL, 1)).result(PATIENCE_S)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(FileNotFoundError):
        ask(SMALL, pool=WorkerPool(FULL, 1)).result(PATIENCE_S)


def test_a_query_that_is_given_up_in_the_queue_is_not_run(ask: Ask) -> None:
    pool, begun = WorkerPool(FULL, 1), threading.Event()
    running = ask(SLOW, pool=pool, started=begun)
    assert begun.wait(PATIENCE_S)
    never = threading.Event()
    waiting, after = ask(SMALL, pool=pool, started=never), ask(SMALL, pool=pool)
    assert waiting.cancel()
    assert running.result(PATIENCE_S) == TOO_LONG
    assert after.result(PATIENCE_S) == ANSWER
    assert not never.is_set()


def test_a_quiet_session_is_served_before_those_that_bomb(ask: Ask) -> None:
    pool, order = WorkerPool(FULL, 1), []
    bombs = [ask(ATTACKS["recursive"], pool=pool, session=f"bomber {number % 3}") for number in range(12)]
    bombs[0].result(PATIENCE_S)
    honest = ask(SMALL, pool=pool, session="honest")
    for reply in [*bombs, honest]:
        reply.add_done_callback(order.append)
    for reply in [*bombs, honest]:
        reply.result(PATIENCE_S)
    assert order.index(honest) < len(order) - 4  # of twelve bombs most are still waiting


def test_processes_without_work_end(ask: Ask, workers: list[Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "IDLE_S", 0.1)
    pool = WorkerPool(FULL, 1)
    for number in (1, 2):
        assert ask(SMALL, pool=pool).result(PATIENCE_S) == ANSWER
        until = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{workers[-1].pid}").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        assert len(workers) == number


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends processes with their parent on Linux only")
def test_no_process_outlives_its_server(tmp_path: Path) -> None:
    """kill -9 in the middle of a query."""
    program = """
import sys, time
from finqa_plugins.environments.openenv_finqa.server import worker_pool
from finqa_plugins.environments.openenv_finqa.server.sql_worker import QueryRequest, WorkerOptions
class Noted(worker_pool.Worker):
    def __init__(self, options):
        super().__init__(options)
        print(self.pid, flush=True)
worker_pool.Worker = Noted
pool = worker_pool.WorkerPool(WorkerOptions("full", False, False), 1)
pool.submit("", QueryRequest("a", "b", sys.argv[1], {}), lambda: None)
time.sleep(60)
"""
    query = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(x) FROM c WHERE 1"
    with subprocess.Popen([sys.executable, "-c", program, query], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
    until = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_process_has_neither_files_nor_secrets(ask: Ask, workers: list[Worker]) -> None:
    pool = WorkerPool(FULL, 1)
    assert ask(SMALL, pool=pool).result(PATIENCE_S) == ANSWER
    folder = Path(f"/proc/{workers[0].pid}")
    names = [str(file.readlink()) for file in (folder / "fd").iterdir()]
    assert not [name for name in names if name.endswith((".sqlite", ".jsonl"))]
    assert b"FINQA_" not in (folder / "environ").read_bytes()
    limits = (folder / "limits").read_text()
    assert [line.split()[3:5] for line in limits.splitlines() if line.startswith("Max file size")] == [["0", "0"]]
