"""Sandboxes that host one session each."""

from __future__ import annotations

import asyncio

import pytest
from fixtures.fake_sandboxes import FakeProvider
from fixtures.pool_play import Events, fault, lease_for
from fixtures.virtual_time import run_virtually

from finqa_cli.errors import ConfigError, SandboxError
from finqa_cli.rollout.pool import SandboxPool
from finqa_cli.types import ExecutionSpec


async def fresh(provider: FakeProvider, size: int, events: Events, **options: object) -> SandboxPool:
    given = {"max_concurrent_create": 100, "health_check_s": 0.0, **options}
    pool = SandboxPool(provider, ExecutionSpec(fresh=True), size=size, labels={}, on_event=events, **given)  # type: ignore[arg-type]
    await pool.start()
    await pool.settled()
    return pool


def test_no_sandbox_hosts_two_sessions_and_none_of_them_is_lost() -> None:
    async def run() -> None:
        provider, events = FakeProvider(), Events()
        pool = await fresh(provider, 3, events, breaker_share=0.01)
        hosts: list[str] = []

        async def client() -> None:
            async with pool.lease() as sandbox:
                assert sandbox is not None
                hosts.append(sandbox.id)
                await asyncio.sleep(5)

        await asyncio.gather(*(client() for _ in range(60)))
        await pool.settled()
        assert len(hosts) == len(set(hosts)) == 60 == len(events.named("sandbox_spent"))
        assert len(events.named("sandbox_ready")) == 63 and provider.most_existing == 3
        stats = pool.stats()
        assert (stats.lost, stats.replaced, stats.idle, pool.alive) == (0, 0, 3, 3)
        assert not events.named("sandbox_lost") and not events.named("breaker_open")
        await pool.close()
        assert not provider.existing

    run_virtually(run())


def test_a_spent_sandbox_is_ended_before_the_next_one_starts_and_without_a_pause() -> None:
    async def run() -> None:
        provider, events = FakeProvider(start_s=1.0, stop_s=0.5), Events()
        pool = await fresh(provider, 1, events, health_check_s=15.0)
        began = asyncio.get_running_loop().time()
        for _ in range(10):
            await lease_for(pool, 2)
        assert asyncio.get_running_loop().time() - began == pytest.approx(10 * 2 + 9 * 1.5, abs=0.2)
        assert provider.most_existing == 1
        await pool.close()

    run_virtually(run())


def test_a_fresh_sandbox_that_dies_under_its_session_is_lost_and_replaced() -> None:
    async def run() -> None:
        provider, events = FakeProvider(), Events()
        pool = await fresh(provider, 1, events, health_check_s=3.0)
        with pytest.raises(SandboxError, match="does not answer"):
            async with pool.lease():
                provider.sandboxes[-1].dead = True
                await asyncio.sleep(100)
        await lease_for(pool)
        assert len(events.named("sandbox_lost")) == len(events.named("sandbox_replaced")) == pool.stats().lost == 1
        await pool.close()

    run_virtually(run())


def test_sessions_that_end_in_faults_use_sandboxes_up_and_open_the_breaker() -> None:
    async def run() -> None:
        provider, events = FakeProvider(), Events()
        pool = await fresh(provider, 1, events, breaker_share=0.3)
        for _ in range(20):
            if events.named("breaker_open"):
                break
            await fault(pool)
        assert events.named("breaker_open") and not events.named("sandbox_lost")
        await pool.close()

    run_virtually(run())


def test_several_sessions_on_a_fresh_sandbox_are_refused() -> None:
    async def run() -> None:
        provider = FakeProvider()
        with pytest.raises(ConfigError, match="one session, not 4"):
            await fresh(provider, 1, Events(), sessions_per_sandbox=4)
        assert not provider.asked

    run_virtually(run())
