"""Every kind of fault really happens, at about its share, the same way for the same seed."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from daytona import AsyncDaytona, DaytonaConfig, DaytonaError, DaytonaRateLimitError
from daytona.common.errors import DaytonaConnectionError
from fixtures.loopback_daytona import connected, create
from hypothesis import given
from hypothesis import strategies as st

from finqa_testing import Delay, Faults, LoopbackConfig
from finqa_testing.daytona.account import Window
from finqa_testing.random_streams import RandomStreams

DRAWS = 4000


@pytest.mark.parametrize("kind", [name for name in Faults.model_fields if name != "fault_after"])
def test_faults_come_at_their_share_and_by_seed(kind: str) -> None:
    first, again, other = RandomStreams(1), RandomStreams(1), RandomStreams(2)
    hits = [first.hit(kind, 0.05) for _ in range(DRAWS)]
    assert hits == [again.hit(kind, 0.05) for _ in range(DRAWS)]
    assert hits != [other.hit(kind, 0.05) for _ in range(DRAWS)]
    assert 0.035 < sum(hits) / DRAWS < 0.065  # 4 standard deviations
    assert first.hits[kind] == sum(hits)


def test_a_kind_is_not_changed_by_the_draws_of_another() -> None:
    alone, mixed = RandomStreams(0), RandomStreams(0)
    hits = []
    for _ in range(100):
        mixed.hit("hang", 0.5)
        hits.append(mixed.hit("dies", 0.5))
    assert hits == [alone.hit("dies", 0.5) for _ in range(100)]


def test_delays_are_lognormal() -> None:
    dice = RandomStreams(0)
    drawn = sorted(dice.seconds("start", Delay(median_s=2.0, sigma=0.5)) for _ in range(DRAWS))
    assert 1.9 < drawn[DRAWS // 2] < 2.1
    assert 3.1 < drawn[int(DRAWS * 0.8413)] < 3.5  # median * exp(sigma)
    assert dice.seconds("start", Delay()) == 0.0


@given(st.lists(st.floats(0.0, 2.0), max_size=60), st.integers(1, 5))
def test_no_window_of_any_alignment_holds_more_than_the_limit(pauses: list[float], limit: int) -> None:
    window, now, taken = Window(limit, 5.0), 0.0, []
    for pause in pauses:
        now += pause
        if window.take(now):
            taken.append(now)
        else:
            assert 1 <= window.wait(now) <= 6
    busiest = max((sum(start - 5.0 < other <= start for other in taken) for start in taken), default=0)
    assert busiest == window.busiest <= limit


async def creates(faults: Faults, number: int, **config: object) -> tuple[Counter[str], dict[str, object]]:
    """What becomes of so many creates one after the other, and the statistics."""
    outcomes: Counter[str] = Counter()
    settings = LoopbackConfig.model_validate({"faults": faults, "create_limit": 0, "seed": 3, **config})
    async with connected(settings) as (loopback, daytona):
        for index in range(number):
            try:
                outcomes[(await create(daytona, name=f"finqa-{index}")).state] += 1
            except DaytonaConnectionError:
                outcomes["cut"] += 1
            except DaytonaError as error:
                outcomes[str(error.status_code)] += 1
        return outcomes, dict(await loopback.control.stats())


async def test_rate_limits_and_server_errors_do_nothing() -> None:
    outcomes, stats = await creates(Faults(rate_limited=0.3, server_error=0.1), 200)
    assert 40 <= outcomes["429"] <= 80
    assert 8 <= sum(outcomes[status] for status in ("500", "502", "503")) <= 40
    assert outcomes["started"] == stats["sandboxes_ever"] == 200 - sum(outcomes.values()) + outcomes["started"]
    again, _ = await creates(Faults(rate_limited=0.3, server_error=0.1), 200)
    assert again == outcomes


async def test_lost_replies_and_late_errors_leave_a_sandbox_behind() -> None:
    outcomes, stats = await creates(Faults(lost_reply=0.2, late_error=0.1), 100)
    assert 8 <= outcomes["cut"] <= 35
    assert 2 <= outcomes["504"] <= 20
    assert outcomes["started"] + outcomes["cut"] + outcomes["504"] == 100
    assert stats["sandboxes_ever"] == 100
    assert stats["duplicates"] == 0
    assert stats["faults"] == {"lost_reply": outcomes["cut"], "late_error": outcomes["504"]}


async def test_a_sandbox_that_cannot_start_ends_in_an_error() -> None:
    async with connected(LoopbackConfig(faults=Faults(start_failed=1.0))) as (loopback, daytona):
        with pytest.raises(DaytonaError, match="injected fault"):
            await create(daytona)
        assert (await loopback.control.stats())["sandboxes_by_state"] == {"error": 1}


async def test_the_create_limit_says_when_to_come_back() -> None:
    config = LoopbackConfig(create_limit=3, create_window_s=3.0)
    async with connected(config) as (loopback, daytona):
        for _ in range(3):
            await create(daytona)
        with pytest.raises(DaytonaRateLimitError) as caught:
            await create(daytona)
        told = {name.lower(): value for name, value in caught.value.headers.items()}
        assert told["retry-after"] == told["retry-after-sandbox-create"] in ("1", "2", "3")
        assert told["x-ratelimit-limit-sandbox-create"] == "3" and told["x-ratelimit-remaining-sandbox-create"] == "0"
        await asyncio.sleep(int(told["retry-after"]))
        await create(daytona)
        stats = await loopback.control.stats()
        assert (stats["creates"], stats["busiest_window"]) == ({"accepted": 4, "limited": 1, "refused": 0}, 3)


async def test_a_hang_lasts_until_the_client_gives_up_and_a_create_among_them_makes_its_sandbox() -> None:
    async with connected(LoopbackConfig(faults=Faults(hang=1.0))) as (loopback, daytona):
        for number, call in enumerate((create(daytona, name="finqa-1"), daytona.get("finqa-1")), start=1):
            hanging = asyncio.ensure_future(call)
            async with asyncio.timeout(30):
                while (await loopback.control.stats())["faults"].get("hang", 0) < number:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await asyncio.wait({hanging}, timeout=0.3)
            assert not hanging.done()
            hanging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hanging
        await loopback.control.set_faults(Faults())
        assert (await daytona.get("finqa-1")).state == "started"


async def test_closing_does_not_wait_for_those_that_hang() -> None:
    async with connected(LoopbackConfig(faults=Faults(hang=1.0))) as (loopback, _):
        stranger = AsyncDaytona(DaytonaConfig(api_key=loopback.api_key, api_url=loopback.api_url))
        hanging = asyncio.create_task(stranger.get("x"))
        await asyncio.sleep(0.2)
        await asyncio.wait_for(loopback.close(), 30)
        with pytest.raises(DaytonaError):
            await hanging
        await stranger.close()
