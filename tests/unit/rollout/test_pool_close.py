"""The end of a pool, in every state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import pytest
from fixtures.fake_sandboxes import SPEC, FakeProvider, FakeSandbox
from fixtures.pool_play import Events, filled, hold
from fixtures.virtual_time import run_virtually

from finqa_cli.errors import SandboxError, ServiceUnavailableError
from finqa_cli.rollout.pool import SandboxPool
from finqa_cli.types import ServerSpec


def test_a_lease_given_in_the_moment_of_the_close_is_refused() -> None:
    async def run() -> None:
        pool = await filled(FakeProvider(), 1)
        release, got = asyncio.Event(), list[object]()
        holder = asyncio.create_task(hold(pool, release))
        await asyncio.sleep(0)
        waiter = asyncio.create_task(hold(pool, release, got.append))
        await asyncio.sleep(1)
        holder.cancel()
        while not pool._sandboxes or pool.stats().waiting:  # noqa: ASYNC110  the place is given in this very step
            await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(SandboxError, match="closed"):
            await waiter
        assert not got

    run_virtually(run())


def test_close_ends_whatever_is_going_on() -> None:
    async def run() -> None:
        provider = FakeProvider(start_s=2.0)
        pool = SandboxPool(provider, SPEC, size=3, max_concurrent_create=1, labels={})
        await pool.start()
        await asyncio.sleep(3)  # one sandbox runs, one is starting, one waits its turn
        release = asyncio.Event()
        clients = [asyncio.create_task(hold(pool, release)) for _ in range(3)]
        readers = [asyncio.create_task(pool.settled())]
        await asyncio.sleep(0.5)
        assert (pool.stats().leased, pool.stats().starting, pool.stats().waiting) == (1, 2, 2)
        await asyncio.gather(pool.close(), pool.close())
        outcomes = await asyncio.gather(*clients, *readers, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [SandboxError, *[ServiceUnavailableError] * 2, type(None)]
        assert provider.closed and not provider.existing and pool.alive == 0
        for late in (pool.ready(), hold(pool, release)):
            with pytest.raises(ServiceUnavailableError, match="closed"):
                await late
        await pool.start()
        assert pool.stats().starting == 0

    run_virtually(run())


def test_a_start_that_cannot_be_cancelled_does_not_hold_the_close_up() -> None:
    async def run() -> None:
        class Deaf(FakeProvider):
            async def start(self, spec: ServerSpec, labels: Mapping[str, str]) -> FakeSandbox:
                starting = asyncio.ensure_future(super().start(spec, labels))
                with suppress(asyncio.CancelledError):
                    return await asyncio.shield(starting)
                return await starting

        provider = Deaf(start_s=10.0)
        pool = SandboxPool(provider, SPEC, size=2, max_concurrent_create=2, labels={}, health_check_s=5.0)
        await pool.start()
        await asyncio.sleep(1)
        await pool.close()
        assert pool.alive == 0 and provider.closed and not provider.existing

    run_virtually(run())


def test_leases_that_a_close_cuts_are_no_faults() -> None:
    async def run() -> None:
        events = Events()
        pool = await filled(FakeProvider(), 10, events, sessions_per_sandbox=4, breaker_share=0.3)
        clients = [asyncio.create_task(hold(pool, asyncio.Event())) for _ in range(40)]
        await asyncio.sleep(1)
        await pool.close()
        outcomes = await asyncio.gather(*clients, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {SandboxError}
        assert {name for name, _ in events} == {"sandbox_ready"}

    run_virtually(run())


def test_a_pool_that_never_started_can_be_closed() -> None:
    async def run() -> None:
        provider = FakeProvider()
        pool = SandboxPool(provider, SPEC, size=3, max_concurrent_create=1, labels={})
        waiting = asyncio.create_task(pool.ready())
        await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(ServiceUnavailableError):
            await waiting
        assert provider.closed and not provider.asked

    run_virtually(run())


def test_a_cancelled_close_still_ends_the_sandboxes() -> None:
    async def run() -> None:
        class Tidy(FakeProvider):
            async def start(self, spec: ServerSpec, labels: Mapping[str, str]) -> FakeSandbox:
                try:
                    return await super().start(spec, labels)
                finally:
                    await asyncio.sleep(5)

        provider = Tidy()
        pool = SandboxPool(provider, SPEC, size=2, max_concurrent_create=1, labels={})
        await pool.start()
        await asyncio.sleep(6.5)  # one sandbox runs, one is starting
        closing = asyncio.create_task(pool.close())
        await asyncio.sleep(1)
        closing.cancel()
        await asyncio.wait({closing})
        assert provider.closed and not provider.existing

    run_virtually(run())
