"""The `daytona` provider under the faults of a cloud: limits, lost replies, cancellations, expiry, refusals."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from fixtures.daytona_provider import RUN, DaytonaBench, nothing_is_left

from finqa_cli.errors import FinqaError, SandboxError
from finqa_plugins.sandboxes.daytona import daytona_cloud, daytona_create, upkeep
from finqa_plugins.sandboxes.daytona import daytona_sandbox as sandbox_module
from finqa_plugins.sandboxes.daytona.daytona_ledger import open_names
from finqa_testing.daytona.config import Faults
from finqa_testing.daytona.loopback import LoopbackDaytona
from finqa_testing.daytona.loopback_control import Stats

HANG_S = 60.0


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DaytonaBench:
    return DaytonaBench(tmp_path, monkeypatch)


async def happens(loopback: LoopbackDaytona, what: Callable[[Stats], int]) -> None:
    async with asyncio.timeout(HANG_S):
        while not what(await loopback.control.stats()):  # noqa: ASYNC110  the loopback is asked over HTTP
            await asyncio.sleep(0.02)


@pytest.mark.thorough
async def test_sixty_sandboxes_in_a_storm(bench: DaytonaBench) -> None:
    faults = {"rate_limited": 0.3, "server_error": 0.05, "lost_reply": 0.05, "late_error": 0.03}
    limits = {"create_limit": 40, "create_window_s": 1.5}
    latency = {"create": {"median_s": 0.05, "sigma": 0.5}, "start": {"median_s": 0.1, "sigma": 0.5}}
    async with bench.loopback(seed=7, faults=faults, latency=latency, stale_list_s=2.0, **limits) as loopback:
        bench.use(loopback)
        provider = bench.provider(**limits)
        sandboxes = await asyncio.gather(*(provider.start(bench.spec, RUN) for _ in range(60)))
        await loopback.control.set_faults(Faults())
        stats = await loopback.control.stats()
        assert stats["sandboxes"] == stats["sandboxes_ever"] == len({sandbox.id for sandbox in sandboxes}) == 60
        assert stats["sandboxes_by_label"]["finqa.run=r"] == 60
        assert stats["duplicates"] == 0
        assert stats["busiest_window"] <= 40
        assert stats["creates"]["limited"] == 0
        assert stats["faults"]["lost_reply"] and stats["faults"]["rate_limited"] > 10, "a storm, not a breeze"
        assert all(await asyncio.gather(*(sandbox.healthy() for sandbox in sandboxes)))
        assert len(await bench.listed(RUN)) == 60
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_the_limit_is_never_met_when_it_is_known_and_learned_when_it_is_not(bench: DaytonaBench) -> None:
    async with bench.loopback(create_limit=10, create_window_s=0.8) as loopback:
        bench.use(loopback)
        polite = bench.provider(create_limit=10, create_window_s=0.8)
        began = time.monotonic()
        await asyncio.gather(*(polite.start(bench.spec, RUN) for _ in range(25)))
        assert time.monotonic() - began >= 1.6
        assert (await loopback.control.stats())["creates"].get("limited", 0) == 0
        await polite.close()
        await nothing_is_left(bench, loopback)
    async with bench.loopback(create_limit=10, create_window_s=3.0) as loopback:
        bench.use(loopback)
        hasty = bench.provider(create_limit=1000, create_window_s=3.0)
        await asyncio.gather(*(hasty.start(bench.spec, RUN) for _ in range(15)))
        stats = await loopback.control.stats()
        assert 0 < stats["creates"]["limited"] <= 15
        assert hasty._gate._quota._limit == 10
        await hasty.close()
        await nothing_is_left(bench, loopback)


async def test_retry_after_is_waited_for(bench: DaytonaBench) -> None:
    async with bench.loopback(faults={"rate_limited": 1.0}) as loopback:
        bench.use(loopback)
        provider = bench.provider()
        began = time.monotonic()
        start = asyncio.create_task(provider.start(bench.spec, RUN))
        await happens(loopback, lambda stats: stats["faults"].get("rate_limited", 0))
        await loopback.control.set_faults(Faults())
        others = [asyncio.create_task(provider.start(bench.spec, RUN)) for _ in range(3)]
        await happens(loopback, lambda stats: stats["creates"]["accepted"])
        assert time.monotonic() - began >= 1.0
        await asyncio.gather(start, *others)
        stats = await loopback.control.stats()
        assert (stats["faults"]["rate_limited"], stats["creates"]["accepted"]) == (1, 4)
        await provider.close()


async def test_a_create_that_hangs_is_found_by_its_name(bench: DaytonaBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daytona_create, "LOOKUP_AFTER_S", 0.3)
    async with bench.loopback(faults={"hang": 1.0}) as loopback:
        bench.use(loopback)
        provider = bench.provider()
        start = asyncio.create_task(provider.start(bench.spec, RUN))
        await happens(loopback, lambda stats: stats["sandboxes"])
        await loopback.control.set_faults(Faults())
        sandbox = await asyncio.wait_for(start, HANG_S)
        assert await sandbox.healthy()
        assert (await loopback.control.stats())["sandboxes_ever"] == 1
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_a_start_cancelled_while_its_create_hangs_leaves_nothing(bench: DaytonaBench) -> None:
    async with bench.loopback(faults={"hang": 1.0}) as loopback:
        bench.use(loopback)
        provider = bench.provider()
        start = asyncio.create_task(provider.start(bench.spec, RUN))
        await happens(loopback, lambda stats: stats["sandboxes"])
        await loopback.control.set_faults(Faults())
        (made,) = await loopback.control.sandboxes()
        assert [name.name for name in open_names(bench.ledger)] == [made["name"]], "before Daytona is asked for it"
        start.cancel()
        await asyncio.wait({start})
        assert start.cancelled()
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_starts_cancelled_at_any_moment_leave_nothing(bench: DaytonaBench) -> None:
    latency = {"create": {"median_s": 0.2, "sigma": 0.8}, "start": {"median_s": 0.3, "sigma": 0.8}}
    async with bench.loopback(seed=3, latency=latency) as loopback:
        bench.use(loopback)
        provider = bench.provider()
        kept = await provider.start(bench.spec, RUN)
        rng = random.Random(5)

        async def give_up() -> None:
            start = asyncio.create_task(provider.start(bench.spec, RUN))
            await asyncio.sleep(rng.random() * 1.2)
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
            if not start.cancelled():
                await start.result().stop()

        await asyncio.gather(*(give_up() for _ in range(25)))
        assert [info.id for info in await provider.list(RUN)] == [kept.id]
        assert (await loopback.control.stats())["sandboxes"] == 1
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_close_ends_starts_and_their_callers_learn_why(bench: DaytonaBench) -> None:
    latency = {"create": {"median_s": 0.3}, "start": {"median_s": 1.5}}
    async with bench.loopback(latency=latency, create_limit=5) as loopback:
        bench.use(loopback)
        provider = bench.provider(create_limit=5)
        starts = [asyncio.create_task(provider.start(bench.spec, RUN)) for _ in range(8)]
        await asyncio.sleep(0.2)
        await provider.close()
        answers = await asyncio.gather(*starts, return_exceptions=True)
        assert {type(answer) for answer in answers} == {SandboxError}
        await nothing_is_left(bench, loopback)


async def test_an_expired_address_is_renewed(bench: DaytonaBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "OUT_OF_REACH_S", 0.0)  # at once, and not by the upkeep a little later
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider(url_ttl_s=2)
        sandbox = await provider.start(bench.spec, RUN)
        first = sandbox.url()
        await loopback.control.expire_urls()
        assert await sandbox.healthy()
        second = sandbox.url()
        assert second != first
        assert sandbox.renew_at < time.monotonic() + 2.0, "before it expires"
        async with asyncio.timeout(HANG_S):
            while sandbox.url() == second:  # noqa: ASYNC110  its health is not checked meanwhile
                await asyncio.sleep(0.05)
        assert await sandbox._prober.status(sandbox.health_url) == 200
        await provider.close()


async def test_running_sandboxes_are_kept_and_forgotten_ones_end(
    bench: DaytonaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "TTL_MARGIN", 0.002)
    async with bench.loopback(minute_s=0.5) as loopback:
        bench.use(loopback)
        provider = bench.provider(auto_stop_minutes=3, ttl_minutes=4, keepalive_s=0.2)
        sandbox = await provider.start(bench.spec, RUN)
        await asyncio.sleep(2.5)
        assert await sandbox.healthy(), "neither idle nor out of time"
        await provider._upkeep.close()
        await happens(loopback, lambda stats: stats["sandboxes"] == 0)
        assert not await sandbox.healthy()
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_a_sandbox_that_fails_to_start_is_deleted(bench: DaytonaBench) -> None:
    async with bench.loopback(faults={"start_failed": 1.0}) as loopback:
        bench.use(loopback)
        provider = bench.provider()
        with pytest.raises(SandboxError, match="error"):
            await provider.start(bench.spec, RUN)
        assert (await loopback.control.stats())["sandboxes"] == 0, "before the provider is closed"
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_stale_lists_hide_no_sandbox_of_this_machine_and_show_none_that_we_ended(bench: DaytonaBench) -> None:
    async with bench.loopback(stale_list_s=60.0, latency={"delete": {"median_s": 0.5}}) as loopback:
        bench.use(loopback)
        provider, other = bench.provider(), bench.provider()
        sandbox = await provider.start(bench.spec, RUN)
        assert [info.id for info in await other.list(RUN)] == [sandbox.id]
        assert not await other.list({"finqa.run": "another"})
        await sandbox.stop()
        assert (await loopback.control.stats())["sandboxes"] == 0, "gone, not going"
        assert not await provider.list(RUN)
        await provider.close()
        await other.close()


async def test_a_deletion_whose_reply_never_comes_is_asked_for_again(
    bench: DaytonaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daytona_cloud, "DELETE_TRY_S", 1.0)
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider(delete_timeout_s=10.0)
        sandboxes = [await provider.start(bench.spec, RUN) for _ in range(3)]
        await loopback.control.set_faults(Faults(hang=1.0))
        stops = [asyncio.create_task(sandbox.stop()) for sandbox in sandboxes]
        await happens(loopback, lambda stats: stats["faults"].get("hang", 0) >= 3)
        await loopback.control.set_faults(Faults())
        await asyncio.wait_for(asyncio.gather(*stops), HANG_S)
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_what_a_server_wrote_before_it_stopped_answering_is_told_once(bench: DaytonaBench) -> None:
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider()
        sandboxes = await asyncio.gather(*(provider.start(bench.spec, RUN) for _ in range(3)))
        await loopback.control.kill([sandboxes[0].id])
        (server,) = (await loopback.control.stats())["servers"]
        os.kill(server, signal.SIGKILL)
        assert not any(await asyncio.gather(*(sandbox.healthy() for sandbox in sandboxes)))
        with structlog.testing.capture_logs() as logs:
            await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))
        told = [(line["log_level"], line["sandbox"]) for line in logs if "stopped answering" in line["event"]]
        assert sandboxes[0].id not in [sandbox for _, sandbox in told], "its toolbox is gone as well: nothing to tell"
        assert sorted(level for level, _ in told) == ["info", "warning"]
        await provider.close()


async def test_nothing_answers(bench: DaytonaBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daytona_cloud, "PATIENCE_S", 1.0)
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider()
        sandboxes = await asyncio.gather(*(provider.start(bench.spec, RUN) for _ in range(5)))
    began = time.monotonic()
    assert not await sandboxes[0].healthy()
    failures = await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes[:2]), return_exceptions=True)
    assert {type(failure) for failure in failures} == {SandboxError}
    with pytest.raises(FinqaError, match="5 sandboxes could not be removed;") as failure:
        await provider.close()
    assert "finqa sandbox reap" in failure.value.remedy
    assert time.monotonic() - began < 40.0, "not a minute for each try"
    assert [path.suffix for path in bench.files()] == [".jsonl"], "the ledger remembers the sandboxes"


async def test_starts_that_nobody_answers_end_together(bench: DaytonaBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daytona_cloud, "PATIENCE_S", 0.5)
    async with bench.loopback(latency={"start": {"median_s": 30.0}}) as loopback:
        bench.use(loopback)
        provider = bench.provider()
        starts = [asyncio.create_task(provider.start(bench.spec, RUN)) for _ in range(20)]
        await happens(loopback, lambda stats: stats["sandboxes"] == 20)
    began = time.monotonic()
    assert {type(answer) for answer in await asyncio.gather(*starts, return_exceptions=True)} == {SandboxError}
    with pytest.raises(SandboxError, match="20 sandboxes could not be removed;"):
        await provider.close()
    assert time.monotonic() - began < 40.0, "not a minute for each try"
    assert bench.files()
