"""Who gets a sandbox, and how a lease ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest
from fixtures.fake_sandboxes import FakeProvider, FakeSandbox
from fixtures.pool_play import filled, hold, lease_for
from fixtures.virtual_time import run_virtually

from finqa_cli.errors import EngineError, SandboxError
from finqa_cli.rollout.pool import SEATED_WAIT_S, Pool


def test_sessions_go_to_the_least_loaded_sandbox() -> None:
    async def run() -> None:
        pool = await filled(FakeProvider(), 3, sessions_per_sandbox=4)
        async with AsyncExitStack() as leases:
            ids = [(await leases.enter_async_context(pool.lease())).id for _ in range(6)]  # type: ignore[union-attr]
            assert sorted(ids) == ["sandbox0", "sandbox0", "sandbox1", "sandbox1", "sandbox2", "sandbox2"]
            stats = pool.stats()
            assert (stats.leased, stats.idle, stats.sessions_active, stats.alive) == (3, 0, 6, 3)
        assert pool.stats().idle == 3
        await pool.close()

    run_virtually(run())


def test_who_waits_is_served_in_order_and_a_cancelled_one_costs_nobody_anything() -> None:
    async def run() -> None:
        pool = await filled(FakeProvider(), 1)
        release, order = asyncio.Event(), list[int]()
        clients = [
            asyncio.create_task(hold(pool, release, lambda _, number=number: order.append(number)))  # type: ignore[misc]
            for number in range(6)
        ]
        await asyncio.sleep(1)
        assert pool.stats().waiting == 5
        clients[2].cancel()
        release.set()
        clients[3].cancel()  # in the same instant as the place becomes free
        await asyncio.gather(*clients, return_exceptions=True)
        assert order == [0, 1, 4, 5]
        assert pool.stats().idle == 1 and pool.stats().waiting == 0
        await pool.close()

    run_virtually(run())


def test_waits_are_counted_and_timed() -> None:
    async def run() -> None:
        pool = await filled(FakeProvider(), 1)
        await asyncio.gather(*(lease_for(pool, 10) for _ in range(3)))
        stats = pool.stats()
        assert (stats.waiting, stats.waits, stats.waited_s) == (0, 2, pytest.approx(10 + 20))
        await pool.close()

    run_virtually(run())


def test_a_lost_sandbox_cuts_its_leases_wherever_they_are_and_no_others() -> None:
    async def run() -> None:
        provider = FakeProvider()
        pool = await filled(provider, 3, sessions_per_sandbox=2, health_check_s=15.0)
        release = asyncio.Event()
        clients = [asyncio.create_task(hold(pool, release)) for _ in range(6)]
        await asyncio.sleep(0)
        provider.sandboxes[0].frozen = True
        began = asyncio.get_running_loop().time()
        done, _ = await asyncio.wait(clients, return_when=asyncio.FIRST_EXCEPTION)
        assert asyncio.get_running_loop().time() - began <= 15 + 10 + 1 + 10 + 0.1
        await asyncio.sleep(0)
        lost = [client for client in clients if client.done()]
        assert len(lost) == 2 and done <= set(lost)
        for client in lost:
            with pytest.raises(SandboxError, match="sandbox0 was lost"):
                client.result()
        assert pool.stats().lost == 1
        await asyncio.sleep(5)
        assert (pool.alive, pool.stats().replaced) == (3, 1) and provider.sandboxes[0].stopped
        release.set()
        await asyncio.gather(*clients, return_exceptions=True)
        await pool.close()

    run_virtually(run())


async def cut_while(body: Callable[[], object], *, cancel: bool = False) -> asyncio.Task[None]:
    """A lease whose sandbox is lost while its block awaits `body`."""
    provider = FakeProvider()
    pool = await filled(provider, 1, health_check_s=5.0)

    async def client() -> None:
        async with pool.lease():
            await body()  # type: ignore[misc]

    task = asyncio.create_task(client())
    await asyncio.sleep(0)
    provider.sandboxes[0].dead = True
    if cancel:
        (sandbox,) = pool._sandboxes
        sandbox.cut("lost")
        task.cancel()
    await asyncio.wait({task})
    await pool.close()
    return task


def test_cut_and_cancellation_from_outside_are_told_apart() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    async def impatient() -> None:
        try:
            async with asyncio.timeout(1000):
                await forever()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # tidies up
            raise

    async def late() -> None:
        async with asyncio.timeout(0.5):
            await forever()

    async def run() -> None:
        for body in (forever, impatient):
            task = await cut_while(body)
            assert isinstance(task.exception(), SandboxError) and task.cancelling() == 0
        task = await cut_while(forever, cancel=True)
        assert task.cancelled(), "a cancellation from outside wins over the loss of the sandbox"
        task = await cut_while(late)
        assert type(task.exception()) is TimeoutError, "the block's own timeout is its own"

    run_virtually(run())


def test_after_a_fault_the_sandbox_is_checked_before_anybody_else_gets_it() -> None:
    async def run() -> None:
        provider = FakeProvider(check_s=3.0)
        pool = await filled(provider, 2)
        for error in (SandboxError("gone"), EngineError("not the sandbox")):
            with pytest.raises(type(error)):
                async with pool.lease():
                    raise error
        first, second = provider.sandboxes
        assert (len(first.checks), len(second.checks)) == (0, 0)
        async with AsyncExitStack() as leases:
            sandbox = await leases.enter_async_context(pool.lease())
            assert sandbox is second
            began = asyncio.get_running_loop().time()
            assert await leases.enter_async_context(pool.lease()) is first
            assert asyncio.get_running_loop().time() - began == pytest.approx(3.0)
            assert (len(first.checks), len(second.checks)) == (1, 0)
        assert pool.stats().lost == 0
        await pool.close()

    run_virtually(run())


def test_a_fault_during_a_check_makes_it_count_for_nothing() -> None:
    async def run() -> None:
        pool = await filled(FakeProvider(check_s=3.0), 1, sessions_per_sandbox=2)

        async def fault_after(seconds: float) -> None:
            async with pool.lease():
                await asyncio.sleep(seconds)
                raise SandboxError("gone")

        faults = asyncio.gather(fault_after(0.0), fault_after(2.9), return_exceptions=True)
        await asyncio.sleep(1.0)
        began = asyncio.get_running_loop().time() - 1.0
        async with pool.lease():
            assert asyncio.get_running_loop().time() - began == pytest.approx(6.0), "two checks, one after each fault"
        await faults
        await pool.close()

    run_virtually(run())


def test_an_engine_seat_that_cannot_be_taken_again_gives_the_place_back() -> None:
    async def run() -> None:
        pool = await filled(FakeProvider(), 1)

        @contextmanager
        def away() -> Iterator[None]:
            yield
            raise EngineError("the engine is gone")

        async def wait_away() -> None:
            async with pool.lease(away):
                raise AssertionError("unreachable")

        async with pool.lease():
            waiting = asyncio.create_task(wait_away())
            await asyncio.sleep(1)
        with pytest.raises(EngineError):
            await waiting
        assert pool.stats().idle == 1
        await pool.close()

    run_virtually(run())


def test_a_seat_is_kept_while_a_lost_sandbox_is_replaced_and_left_while_others_have_all_sandboxes() -> None:
    """An engine in lockstep waits for seats: where a place comes anyway, its batches do not depend on a death."""

    async def run() -> None:
        provider = FakeProvider(start_s=20.0)
        pool = await filled(provider, 2, health_check_s=5.0)
        away: list[str] = []

        @contextmanager
        def leaving(name: str) -> Iterator[None]:
            away.append(name)
            yield

        async def recover() -> None:
            with contextlib.suppress(SandboxError):
                async with pool.lease() as sandbox:
                    assert isinstance(sandbox, FakeSandbox)
                    sandbox.dead = True
                    await asyncio.sleep(1000)
            async with pool.lease(lambda: leaving("recovering")):
                await asyncio.sleep(50)

        async def come_later() -> None:
            await asyncio.sleep(25)
            async with pool.lease(lambda: leaving("third")):
                pass

        await asyncio.gather(recover(), lease_for(pool, 100), come_later())
        assert pool.stats().replaced == 1 and pool.stats().waits == 2
        assert away == ["third"]
        await pool.close()

    run_virtually(run())


def test_a_seat_is_left_when_a_lost_sandbox_is_not_replaced_in_time() -> None:
    async def run() -> None:
        provider = FakeProvider()
        pool = await filled(provider, 2, health_check_s=5.0)
        provider.start_s = 1000.0
        left: list[float] = []

        @contextmanager
        def leaving() -> Iterator[None]:
            left.append(asyncio.get_running_loop().time())
            yield

        async def recover() -> None:
            with contextlib.suppress(SandboxError):
                async with pool.lease() as sandbox:
                    assert isinstance(sandbox, FakeSandbox)
                    sandbox.dead = True
                    await asyncio.sleep(1000)
            began = asyncio.get_running_loop().time()
            async with pool.lease(leaving):
                assert left == [pytest.approx(began + SEATED_WAIT_S)]

        await asyncio.gather(recover(), lease_for(pool, 500))
        await pool.close()

    run_virtually(run())


async def test_leases_are_cheap_with_five_hundred_sandboxes() -> None:
    pool = await filled(FakeProvider(start_s=0.0), 500, sessions_per_sandbox=4, health_check_s=15.0)

    async def visit() -> None:
        for _ in range(20):
            async with pool.lease():
                await asyncio.sleep(0)

    await asyncio.gather(*(visit() for _ in range(500)))
    await pool.close()


async def test_an_environment_without_sandboxes_needs_no_pool() -> None:
    pool = Pool()
    await pool.start()
    await pool.ready()
    await pool.settled()
    async with pool.lease() as sandbox:
        assert sandbox is None
    assert pool.stats().alive == 0
    await pool.close()
