"""When a pool stops altogether."""

from __future__ import annotations

import asyncio

import pytest
from fixtures.fake_sandboxes import FakeProvider
from fixtures.pool_play import Events, fault, lease_for, started, until
from fixtures.virtual_time import run_virtually

from finqa_cli.errors import SandboxError, ServiceUnavailableError


def test_the_breaker_ends_waiting_and_new_leases_with_the_first_error() -> None:
    async def run() -> None:
        provider, events = FakeProvider(), Events()
        pool = await started(provider, 4, events, sessions_per_sandbox=2, breaker_share=0.5)
        await pool.settled()
        holders = [asyncio.create_task(lease_for(pool, 1000)) for _ in range(7)]
        await asyncio.sleep(1)
        for _ in range(21):  # the first four starts went well
            await fault(pool)
            await asyncio.sleep(1)
            if events.named("breaker_open"):
                break
        (opened,) = events.named("breaker_open")
        assert "the connection was lost" in str(opened["reason"]) and "16 of the latest 20" in str(opened["reason"])
        for late in (lease_for(pool), lease_for(pool)):
            with pytest.raises(ServiceUnavailableError, match="first error"):
                await late
        assert not any(holder.done() for holder in holders), "those that play go on"
        await pool.close()
        await asyncio.gather(*holders, return_exceptions=True)

    run_virtually(run())


def test_waiting_leases_hear_of_an_open_breaker() -> None:
    async def run() -> None:
        provider = FakeProvider(failing=lambda number: SandboxError("no room") if number else None)
        pool = await started(provider, 10, breaker_share=0.5)
        await pool.settled()
        holder = asyncio.create_task(lease_for(pool, 10_000))
        await asyncio.sleep(0)
        with pytest.raises(ServiceUnavailableError, match="no room"):
            await lease_for(pool)
        await pool.close()
        await asyncio.gather(holder, return_exceptions=True)

    run_virtually(run())


def test_a_sandbox_counts_once_for_the_breaker_whatever_it_takes_with_it() -> None:
    async def run() -> None:
        provider, events = FakeProvider(), Events()
        pool = await started(provider, 16, events, sessions_per_sandbox=32, breaker_share=0.2)
        await pool.settled()
        clients = [asyncio.create_task(lease_for(pool, 100)) for _ in range(16 * 32)]
        await asyncio.sleep(1)
        for sandbox in provider.sandboxes[:3]:
            sandbox.dead = True
        outcomes = await asyncio.gather(*clients, return_exceptions=True)
        assert sum(isinstance(outcome, SandboxError) for outcome in outcomes) == 3 * 32
        assert pool.stats().lost == 3 and not events.named("breaker_open")
        await pool.close()

    run_virtually(run())


def test_sandboxes_that_die_while_nobody_plays_count_for_the_breaker_too() -> None:
    async def run() -> None:
        provider, events = FakeProvider(), Events()
        pool = await started(provider, 20, events, breaker_share=0.5)
        await pool.settled()
        for _ in range(2):
            for sandbox in provider.sandboxes:
                sandbox.dead = True
            await until(lambda: not pool.alive)
            await until(lambda: pool.alive == 20)
        assert "does not answer" in str(events.named("breaker_open")[0]["reason"])
        await pool.close()

    run_virtually(run())


def test_sandboxes_that_start_well_and_die_at_once_open_the_breaker_and_slow_down() -> None:
    async def run() -> None:
        provider = FakeProvider()
        pool = await started(provider, 2, breaker_share=0.5)
        with pytest.raises(ServiceUnavailableError, match="of the latest"):
            for _ in range(100):
                for sandbox in provider.sandboxes:
                    sandbox.dead = True
                await fault(pool)
        assert asyncio.get_running_loop().time() > 60
        assert provider.asked < 30
        await pool.close()

    run_virtually(run())
