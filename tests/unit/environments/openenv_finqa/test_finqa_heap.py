"""A query fails for want of memory only when it alone needs too much."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fixtures.hostile_sql import ATTACKS, TABLE
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotReader
from finqa_plugins.environments.openenv_finqa.server.sql_execution import QueryRunner
from finqa_plugins.environments.openenv_finqa.server.sql_guard import SharedHeap


def test_work_that_is_too_big_alone_fails_once() -> None:
    calls = []

    def work() -> None:
        calls.append(1)
        raise MemoryError

    with pytest.raises(MemoryError):
        SharedHeap().run(work)
    assert len(calls) == 1


def test_work_that_others_crowded_out_is_run_again_alone() -> None:
    heap = SharedHeap()
    other_runs, may_end, tries = threading.Event(), threading.Event(), []

    def other() -> str:
        other_runs.set()
        may_end.wait(10)
        return "other"

    def work() -> str:
        tries.append(may_end.is_set())
        if len(tries) == 1:
            may_end.set()
            raise MemoryError
        return "done"

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(heap.run, other)
        assert other_runs.wait(10)
        assert heap.run(work) == "done"
        assert running.result(10) == "other"
    assert tries == [False, True]


def test_an_attempt_neither_waits_nor_raises() -> None:
    heap = SharedHeap()
    assert heap.attempt(lambda: 5) == 5

    def fail() -> None:
        raise MemoryError

    assert heap.attempt(fail) is None
    tries = []

    def crowded() -> object:
        tries.append(1)
        if len(tries) == 1:
            heap.attempt(lambda: None)  # something else runs meanwhile
            raise MemoryError
        return heap.attempt(lambda: 5)  # alone now: nothing else may begin

    assert heap.run(crowded) is None


def test_small_queries_succeed_beside_memory_hogs(tmp_path: Path) -> None:
    runner = QueryRunner(SnapshotReader(write_tiny_snapshot(tmp_path).path))
    hogs = [ATTACKS["recursive-rows"], ATTACKS["scalar-chain"], ATTACKS["in-chain"]]
    small = f"SELECT \"2024\" FROM {TABLE} WHERE line_item = 'total_revenues'"
    with ThreadPoolExecutor(4) as threads:
        greedy = [threads.submit(runner.run, "acme", TABLE, query) for query in hogs]
        modest = [threads.submit(runner.run, "acme", TABLE, small) for _ in range(200)]
        assert {reply.result(60) for reply in modest} == {'[{"2024":6118}]'}
        assert {reply.result(60) for reply in greedy} == {"Error executing query: out of memory"}
