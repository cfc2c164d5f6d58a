"""How a pool notices that sandboxes are lost, and replaces them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import pytest
from fixtures.fake_sandboxes import SPEC, FakeProvider
from fixtures.pool_play import Events, fault, lease_for, started, until
from fixtures.virtual_time import run_virtually

from finqa_cli.errors import SandboxError
from finqa_cli.rollout.health import CHECK_TIMEOUT_S, SECONDS_TO_SECOND_CHECK
from finqa_cli.rollout.pool import SandboxPool


def test_five_hundred_health_checks_are_spread_over_the_interval() -> None:
    async def run() -> None:
        provider = FakeProvider()
        pool = await started(provider, 500, max_concurrent_create=500)
        await pool.settled()
        await asyncio.sleep(75)
        per_second = Counter(int(at) for sandbox in provider.sandboxes for at in sandbox.checks if 1 <= at < 76)
        assert sum(per_second.values()) == pytest.approx(500 * 5, rel=0.01)
        assert max(per_second.values()) <= 40  # a third of a hundred each second, give or take
        await pool.close()

    run_virtually(run())


def test_one_missed_check_is_forgiven_and_two_are_not() -> None:
    async def run() -> None:
        provider = FakeProvider()
        pool = await started(provider, 1, health_check_s=5.0)
        await pool.settled()
        sandbox = provider.sandboxes[0]
        sandbox.dead = True
        await until(lambda: len(sandbox.checks) == 1)
        await asyncio.sleep(0.5)  # the check has ended now, and the second has not begun
        sandbox.dead = False
        assert len(sandbox.checks) == 1
        await asyncio.sleep(30)
        assert pool.stats().lost == 0
        async with asyncio.timeout(5 + 1 + 0.1):
            sandbox.dead = True
            await until(lambda: pool.stats().lost == 1)
        await pool.close()

    run_virtually(run())


def test_a_check_that_is_never_answered_is_a_missed_one() -> None:
    async def run() -> None:
        provider = FakeProvider(patience_s=1e9)
        pool = await started(provider, 1, health_check_s=5.0)
        await pool.settled()
        provider.sandboxes[0].frozen = True
        async with asyncio.timeout(5 + 2 * CHECK_TIMEOUT_S + SECONDS_TO_SECOND_CHECK + 1):
            await until(lambda: pool.stats().lost == 1)
        await pool.close()

    run_virtually(run())


def test_sandboxes_that_died_together_are_found_at_once_and_single_deaths_cost_few_checks() -> None:
    async def run() -> None:
        provider, events = FakeProvider(), Events()
        pool = await started(provider, 500, events, health_check_s=0.0, max_concurrent_create=500)
        await pool.settled()
        provider.sandboxes[0].dead = True
        await fault(pool)
        await asyncio.sleep(5)
        assert (pool.stats().lost, pool.alive) == (1, 500)
        assert sum(len(sandbox.checks) for sandbox in provider.sandboxes) < 20

        for sandbox in provider.sandboxes:
            sandbox.dead = True
        began = asyncio.get_running_loop().time()
        await fault(pool)
        await lease_for(pool)
        assert asyncio.get_running_loop().time() - began < 2.0  # four rounds of checks and one start of a second
        await asyncio.sleep(2)
        assert (pool.alive, len(provider.alive()), pool.stats().lost) == (500, 500, 501)
        assert len(events.named("sandbox_lost")) == len(events.named("sandbox_replaced")) == 501
        assert provider.most_existing <= 500
        await pool.close()

    run_virtually(run())


def test_a_fifth_killed_and_a_twentieth_frozen_at_once_lose_no_client() -> None:
    async def run() -> None:
        provider, events = FakeProvider(start_s=2.0, check_s=0.2), Events()
        pool = await started(provider, 500, events, breaker_share=0.5)
        await pool.settled()

        async def client(number: int) -> int:
            for tries in range(4):
                try:
                    await lease_for(pool, 20 + number % 40)
                    return tries
                except SandboxError:
                    await asyncio.sleep(0.25 * 2**tries)
            raise AssertionError("a client lost its fourth sandbox")

        clients = [asyncio.create_task(client(number)) for number in range(600)]
        await asyncio.sleep(10)
        for sandbox in provider.sandboxes[:500:5]:
            sandbox.dead = True
        for sandbox in provider.sandboxes[1:500:20]:
            sandbox.frozen = True
        tries = await asyncio.gather(*clients)
        assert 100 <= sum(tries) <= 125 and max(tries) <= 2  # some end on a frozen sandbox before it is found
        assert pool.stats().lost == 125 and not events.named("breaker_open")
        await asyncio.sleep(60)
        assert pool.alive == len(provider.alive()) == 500
        await pool.close()

    run_virtually(run())


def test_sandboxes_that_have_proved_themselves_are_replaced_without_a_pause() -> None:
    async def run() -> None:
        provider = FakeProvider()
        pool = await started(provider, 1)
        for _ in range(6):
            await lease_for(pool)
            provider.sandboxes[-1].dead = True
            await fault(pool)
            began = asyncio.get_running_loop().time()
            await lease_for(pool)
            assert asyncio.get_running_loop().time() - began < 1.5  # a check, the end of the old one, a start of 1 s
        await pool.close()

    run_virtually(run())


def test_many_deaths_at_once_do_not_flood_the_living_with_checks() -> None:
    async def run() -> None:
        provider = FakeProvider()
        pool = await started(provider, 500, health_check_s=0.0)
        await pool.settled()
        clients = [asyncio.create_task(lease_for(pool, 10)) for _ in range(500)]
        await asyncio.sleep(1)
        dead, living = provider.sandboxes[::5], [sandbox for n, sandbox in enumerate(provider.sandboxes) if n % 5]
        for sandbox in dead:
            sandbox.dead = True
        for sandbox in [sandbox for sandbox in pool._sandboxes if sandbox.sandbox in dead]:
            pool._note_fault(sandbox, SandboxError("the connection was lost"))
            await asyncio.sleep(0.008)
        await asyncio.sleep(0.1)
        assert pool.stats().lost == 100
        assert max(len(sandbox.checks) for sandbox in living) <= 1
        await asyncio.gather(*clients, return_exceptions=True)
        await pool.close()

    run_virtually(run())


def test_a_sandbox_that_answers_checks_and_fails_every_session_is_replaced() -> None:
    """It would be free more often than any other, and one lease after the other would end there."""

    async def run() -> None:
        provider, events = FakeProvider(), Events()
        pool = await started(provider, 4, events, breaker_share=0.9)
        await pool.settled()
        sick, failures = provider.sandboxes[0], 0

        async def client() -> None:
            nonlocal failures
            while True:
                try:
                    async with pool.lease() as sandbox:
                        if sandbox is sick:
                            raise SandboxError("no session free")
                        await asyncio.sleep(60)
                    return
                except SandboxError:
                    failures += 1
                    await asyncio.sleep(0.25)

        await asyncio.gather(*(client() for _ in range(12)))
        assert (failures, pool.stats().lost, pool.alive, len(provider.alive())) == (3, 1, 4, 4)
        (lost,) = events.named("sandbox_lost")
        assert lost["sandbox"] == sick.id and "all of its sessions fail." in str(lost["reason"])
        await pool.close()

    run_virtually(run())


def test_faults_between_good_sessions_and_beside_others_cost_no_sandbox() -> None:
    """What fails may be a question, not the sandbox: while others play on it, or played well since, it is kept."""

    async def run() -> None:
        provider = FakeProvider()
        pool = await started(provider, 1, sessions_per_sandbox=2, breaker_share=1.0)
        await pool.settled()
        for _ in range(6):
            await fault(pool)
            await fault(pool)
            await lease_for(pool)
        beside = asyncio.create_task(lease_for(pool, 100))
        await asyncio.sleep(1)
        for _ in range(6):
            await fault(pool)
        await beside
        assert pool.stats().lost == 0
        await pool.close()

    run_virtually(run())


def test_a_sandbox_that_never_ends_costs_no_place_for_ever() -> None:
    async def run() -> None:
        provider = FakeProvider(stop_s=1e9)
        pool = await started(provider, 1)
        await pool.settled()
        provider.sandboxes[0].dead = True
        await fault(pool)
        began = asyncio.get_running_loop().time()
        await lease_for(pool)
        assert asyncio.get_running_loop().time() - began < 20
        await pool.close()

    run_virtually(run())


def test_a_listener_that_fails_and_a_check_that_raises_stop_nothing() -> None:
    async def run() -> None:
        def broken(name: str, fields: Mapping[str, object]) -> None:
            raise RuntimeError("disk full")

        provider = FakeProvider()
        pool = SandboxPool(
            provider, SPEC, size=1, max_concurrent_create=1, labels={}, health_check_s=5.0, on_event=broken
        )
        await pool.start()
        await pool.settled()

        async def raising() -> bool:
            raise RuntimeError("a mistake of the provider")

        provider.sandboxes[0].healthy = raising  # type: ignore[method-assign]
        await asyncio.sleep(20)
        assert (pool.alive, pool.stats().lost) == (1, 1)
        await pool.close()

    run_virtually(run())
