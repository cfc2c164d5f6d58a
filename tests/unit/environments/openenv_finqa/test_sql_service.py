"""Where queries of sessions run, and that neither memory nor time of one is another's."""

from __future__ import annotations

import asyncio

import pytest
from fixtures.hostile_sql import ATTACKS, TABLE
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_plugins.environments.openenv_finqa.server import sql_service
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotReader
from finqa_plugins.environments.openenv_finqa.server.sql_service import QuickAllowance, SqlService, SqlSession

SMALL = f"SELECT \"2024\" FROM {TABLE} WHERE line_item = 'total_revenues'"
WITH = f'WITH a AS (SELECT "2024" x FROM {TABLE} WHERE margin > 0.2) SELECT max(x) AS most FROM a'
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> SnapshotReader:
    return SnapshotReader(write_tiny_snapshot(tmp_path_factory.mktemp("service")).path)


@pytest.fixture(scope="module")
def service(snapshot: SnapshotReader) -> SqlService:
    return SqlService(snapshot)


async def test_small_queries_succeed_beside_memory_hogs(service: SqlService) -> None:
    hogs = [ATTACKS["recursive-rows"], ATTACKS["scalar-chain"], ATTACKS["in-chain"]] * 3
    async with asyncio.timeout(PATIENCE_S):
        greedy = [asyncio.create_task(service.run(SqlSession(), "acme", TABLE, query)) for query in hogs]
        sessions = [SqlSession() for _ in range(10)]
        for number in range(200):
            query, reply = ((SMALL, '[{"2024":6118}]'), (WITH, '[{"most":6118}]'))[number % 2]
            assert await service.run(sessions[number % 10], "acme", TABLE, query) == reply
        assert set(await asyncio.gather(*greedy)) == {"Error executing query: out of memory"}


async def test_a_session_is_slow_from_a_slow_query_to_the_next_quick_one(
    service: SqlService, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    run_quickly = service._runner.run_quickly

    def noted(company: str, table: str, query: str) -> str | None:
        tried.append(query)
        return run_quickly(company, table, query)

    monkeypatch.setattr(service._runner, "run_quickly", noted)
    monkeypatch.setattr(service, "_allowance", QuickAllowance())
    bomber, other, slow = SqlSession(), SqlSession(), ATTACKS["cross-join"]
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            assert "stopped after" in await service.run(bomber, "acme", TABLE, slow)
        assert (tried, bomber.slow) == ([slow], True)  # the second bomb cost the server's thread nothing
        await service.run(bomber, "acme", TABLE, SMALL)
        assert (tried, bomber.slow) == ([slow], False)
        await service.run(bomber, "acme", TABLE, SMALL)
        await service.run(other, "acme", TABLE, WITH)
    assert tried == [slow, SMALL, WITH]
    assert not other.slow


def test_what_is_not_quick_has_a_tenth_of_the_servers_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(sql_service.time, "monotonic", lambda: now)
    allowance = QuickAllowance()
    for _ in range(1000):
        assert allowance.left()
        allowance.charge(0.0005)
    spent = tries = 0.0
    while now < 10.0:
        tries += 1
        if allowance.left():
            allowance.charge(0.006)
            spent += 0.005
        now += 0.001
    assert spent <= 0.1 * 10.0 + sql_service.QUICK_STORE_S + 0.005
    assert spent >= 0.9
    now += 60.0
    assert allowance.left()


async def test_a_burst_of_bombs_takes_little_of_the_servers_thread(
    snapshot: SnapshotReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred sessions at once, which nothing is known of yet.

    A small store, and no time that is free: on a fast machine a bomb takes little more than what is free.
    """
    monkeypatch.setattr(sql_service, "QUICK_STORE_S", 0.02)
    monkeypatch.setattr(sql_service, "QUICK_S", 0.0)
    service, tried = SqlService(snapshot), []
    run_quickly = service._runner.run_quickly
    monkeypatch.setattr(
        service._runner, "run_quickly", lambda *arguments: tried.append(arguments) or run_quickly(*arguments)
    )
    bombs = [asyncio.create_task(service.run(SqlSession(), "acme", TABLE, ATTACKS["cross-join"])) for _ in range(100)]
    async with asyncio.timeout(PATIENCE_S):
        assert await service.run(SqlSession(), "acme", TABLE, WITH) == '[{"most":6118}]'
        assert sum(bomb.done() for bomb in bombs) < 90
        for bomb in bombs:
            bomb.cancel()
        await asyncio.gather(*bombs, return_exceptions=True)
    assert 1 <= len(tried) < 80
