"""How a pool fills, and what failed and refused starts do to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import pairwise

import pytest
from fixtures.fake_sandboxes import Failing, FakeProvider, FakeSandbox
from fixtures.pool_play import Events, fault, lease_for, started, until
from fixtures.virtual_time import run_virtually
from structlog.testing import capture_logs

from finqa_cli.errors import AuthenticationError, SandboxError, ServiceUnavailableError
from finqa_cli.types import ServerSpec

NO_QUOTA = ServiceUnavailableError("Total CPU limit exceeded.", remedy="fewer --sandboxes")


def first(count: int, error: Exception) -> Failing:
    return lambda number: error if number < count else None


def test_it_is_ready_with_the_first_sandbox_and_settled_with_the_last() -> None:
    async def run() -> None:
        provider, events = FakeProvider(start_s=2.0), Events()
        pool = await started(provider, 10, events, max_concurrent_create=4)
        clock = asyncio.get_running_loop()
        await pool.ready()
        assert (clock.time(), pool.alive) == (pytest.approx(2.0), 4)
        await pool.settled()
        assert (clock.time(), pool.alive, provider.most_starting) == (pytest.approx(6.0), 10, 4)
        assert {fields["sandbox"] for fields in events.named("sandbox_ready")} == {f"sandbox{n}" for n in range(10)}
        await pool.close()

    run_virtually(run())


def test_failed_starts_are_retried_ever_more_slowly() -> None:
    async def run() -> None:
        asked: list[float] = []

        def failing(number: int) -> Exception | None:
            asked.append(asyncio.get_running_loop().time())
            return SandboxError("no room") if number < 12 else None

        pool = await started(FakeProvider(failing=failing, start_s=0.0), 1)
        await pool.settled()
        with pytest.raises(SandboxError, match="no room"):
            await pool.ready()
        assert len(asked) == 3, "one failure of one sandbox does not say that there will never be one"
        await asyncio.sleep(300)
        pauses = [round(later - earlier, 3) for earlier, later in pairwise(asked)]
        assert pauses == sorted(pauses) and pauses[0] < 1 and pauses[-1] > 20
        assert pool.alive == 1
        await pool.close()

    run_virtually(run())


def test_without_any_sandbox_each_lease_gives_it_one_more_try_at_once() -> None:
    async def run() -> None:
        provider = FakeProvider(failing=first(6, SandboxError("no room")))
        pool = await started(provider, 1)
        for asked in (3, 4, 5, 6):
            began = asyncio.get_running_loop().time()
            with pytest.raises(SandboxError, match="no room"):
                await lease_for(pool)
            assert provider.asked == asked
        await lease_for(pool)
        assert asyncio.get_running_loop().time() - began == pytest.approx(2.0)  # two starts, no pause
        await pool.close()

    run_virtually(run())


def test_a_refusal_reaches_everybody_who_waits_at_once_with_its_remedy() -> None:
    async def run() -> None:
        error = AuthenticationError("The key is refused.", remedy="export DAYTONA_API_KEY=...")
        provider = FakeProvider(failing=lambda number: error)
        pool = await started(provider, 50, max_concurrent_create=5)
        clients = [asyncio.create_task(lease_for(pool)) for _ in range(20)]
        outcomes = await asyncio.gather(*clients, pool.ready(), lease_for(pool), return_exceptions=True)
        assert asyncio.get_running_loop().time() == pytest.approx(1.0)
        assert outcomes == [error] * 22
        assert provider.asked == 5, "starts that wait their turn are held back by a refusal"
        await pool.close()

    run_virtually(run())


def test_failed_starts_of_one_kind_are_one_line_of_the_log() -> None:
    """Their messages differ, each names its sandbox; all of them are events."""

    async def run() -> None:
        def failing(number: int) -> Exception | None:
            return SandboxError(f"Sandbox {number} vanished.") if number < 200 else None

        events = Events()
        pool = await started(FakeProvider(failing=failing), 200, events, max_concurrent_create=200)
        with capture_logs() as lines:
            await asyncio.sleep(60)
        assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["sandbox did not start"]
        assert len({fields["reason"] for fields in events.named("sandbox_failed")}) == 200
        await pool.close()

    run_virtually(run())


def test_a_quota_makes_the_pool_smaller_said_once_and_asked_again_rarely() -> None:
    async def run() -> None:
        quota = 30

        class Limited(FakeProvider):
            async def start(self, spec: ServerSpec, labels: Mapping[str, str]) -> FakeSandbox:
                if self.existing >= quota:
                    self.asked += 1
                    raise NO_QUOTA
                return await super().start(spec, labels)

        provider, events = Limited(), Events()
        pool = await started(provider, 100, events, max_concurrent_create=40)
        await pool.settled()
        assert pool.alive == 30
        (reduced,) = events.named("pool_reduced")
        assert reduced == {"alive": 30, "size": 100, "reason": NO_QUOTA.message, "remedy": NO_QUOTA.remedy}
        asked = provider.asked
        await asyncio.sleep(300)
        assert 5 <= provider.asked - asked <= 10
        provider.sandboxes[3].dead = True
        await asyncio.sleep(30)
        assert (pool.alive, pool.stats().replaced) == (30, 1), "the place of a dead sandbox is free again"
        await asyncio.gather(*(lease_for(pool, 5) for _ in range(90)))
        quota = 100
        await asyncio.sleep(60)
        assert pool.alive == 100
        assert len(events.named("pool_reduced")) == 1
        await pool.close()

    run_virtually(run())


def test_a_single_failure_after_a_good_start_is_waited_out() -> None:
    async def run() -> None:
        provider = FakeProvider(failing=lambda number: SandboxError("no room") if number != 2 else None)
        pool = await started(provider, 1)
        await lease_for(pool)
        provider.sandboxes[0].dead = True
        await fault(pool)
        waiting = asyncio.create_task(lease_for(pool))
        await until(lambda: provider.asked == 5)
        assert not waiting.done(), "two failures in a row since the last sandbox"
        await asyncio.wait({waiting})
        assert isinstance(waiting.exception(), SandboxError) and provider.asked == 6
        await pool.close()

    run_virtually(run())
