"""Never more creates than the limit in any window, however they arrive and however long their replies take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import AuthenticationError
from finqa_plugins.sandboxes._quota.shared_quota import FileQuota, WindowFile
from finqa_plugins.sandboxes._quota.sliding_window import SlidingWindow
from finqa_plugins.sandboxes.daytona.gate import CreateGate

WINDOW_S, SETTLE_S = 10.0, 2.0
seconds = st.floats(min_value=0.0, max_value=30.0, allow_nan=False)


def fullest(counted: list[float]) -> int:
    """Most requests in any closed window."""
    times = sorted(counted)
    return max(sum(start <= at <= start + WINDOW_S for at in times) for start in times)


@given(
    limit=st.integers(1, 5),
    gaps=st.lists(st.floats(0.0, 15.0), min_size=1, max_size=40),
    replies=st.lists(seconds, min_size=40, max_size=40),
    moments=st.lists(st.floats(0.0, 1.0), min_size=40, max_size=40),
    pauses=st.dictionaries(st.integers(0, 39), st.floats(0.0, 20.0), max_size=3),
)
def test_no_window_holds_more_than_the_limit(
    limit: int, gaps: list[float], replies: list[float], moments: list[float], pauses: dict[int, float]
) -> None:
    window = SlidingWindow(limit, WINDOW_S, settle_s=SETTLE_S)
    now, paused_until = 0.0, 0.0
    counted: list[float] = []
    open_requests: list[tuple[float, int]] = []
    for index, gap in enumerate(gaps):
        now += gap
        while True:
            for ended in [request for request in open_requests if request[0] <= now]:
                open_requests.remove(ended)
                window.end(ended[1], ended[0])
            if (delay := window.delay(now)) == 0.0:
                break
            now += delay
        assert now >= paused_until
        ticket = window.begin(now)
        counted.append(now + moments[index] * min(replies[index], SETTLE_S))
        open_requests.append((now + replies[index], ticket))
        if index in pauses:
            paused_until = now + pauses[index]
            window.pause(paused_until)
    assert fullest(counted) <= limit


@given(st.integers(1, 20), st.integers(1, 60))
def test_a_window_is_used_to_the_full(limit: int, count: int) -> None:
    window = SlidingWindow(limit, WINDOW_S)
    now = 0.0
    for _ in range(count):
        now += window.delay(now)
        window.end(window.begin(now), now)
    assert now <= (count - 1) // limit * (WINDOW_S + 0.01)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Callable[[int, float], CreateGate]]:
    """Makes a gate with a limit and a window in seconds."""
    made: list[CreateGate] = []

    def make(limit: int, window_s: float) -> CreateGate:
        made.append(CreateGate(lambda: FileQuota(WindowFile(tmp_path, "a"), limit, window_s)))
        return made[-1]

    yield make
    for one in made:
        one.close()


MakeGate = Callable[[int, float], CreateGate]


async def test_a_lower_limit_is_learned_and_never_raised(tmp_path: Path) -> None:
    quota = FileQuota(WindowFile(tmp_path, "a"), 3, WINDOW_S)
    quota.pause(0.0, 2)
    quota.pause(0.0, 600)
    for _ in range(2):
        quota.end((await quota.take()).ticket)
    assert (await quota.take()).wait_s == pytest.approx(WINDOW_S, abs=1.0)
    quota.pause(0.0, 0)
    assert quota._limit == 1
    quota.close()


async def test_the_gate_is_first_come_first_served(gate: MakeGate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)  # a wall clock that is set back delays no create
    passing = gate(2, 0.1)
    order: list[int] = []

    async def pass_through(number: int) -> None:
        async with passing.place():
            order.append(number)

    began = time.monotonic()
    async with asyncio.timeout(60.0):
        await asyncio.gather(*(pass_through(number) for number in range(6)))
    assert order == list(range(6))
    assert time.monotonic() - began >= 0.2


async def test_a_cancelled_waiter_takes_no_place_and_holds_up_nobody(gate: MakeGate) -> None:
    passing = gate(1, 0.2)
    began = time.monotonic()
    async with passing.place():
        pass

    async def pass_through() -> float:
        async with passing.place():
            return time.monotonic()

    first, second = (asyncio.create_task(pass_through()) for _ in range(2))
    await asyncio.sleep(0.05)
    first.cancel()
    assert await second - began >= 0.2
    assert first.cancelled()


async def test_a_pause_holds_everyone_back(gate: MakeGate) -> None:
    passing = gate(100, 60.0)
    began = time.monotonic()
    passing.pause(0.2)
    async with passing.place():
        assert time.monotonic() - began >= 0.2


async def test_a_refusal_reaches_everyone_who_waits_and_passes(gate: MakeGate) -> None:
    passing = gate(1, 60.0)
    async with passing.place():
        pass

    async def pass_through() -> None:
        async with passing.place():
            pass

    waiters = [asyncio.create_task(pass_through()) for _ in range(3)]
    await asyncio.sleep(0)
    passing.refuse(AuthenticationError("no", remedy="a key"), seconds=0.1)
    answers = await asyncio.gather(*waiters, return_exceptions=True)
    assert [(type(answer), getattr(answer, "remedy", "")) for answer in answers] == [(AuthenticationError, "a key")] * 3
    await asyncio.sleep(0.11)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await pass_through()
