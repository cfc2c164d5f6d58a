"""When batches form, who leaves, and that nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import EngineError
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion, Sampling
from finqa_plugins.engines.transformers.decode import Job
from finqa_plugins.engines.transformers.transformers_engine import RequestQueue, Ticket, TransformersEngine
from finqa_testing.contract.engine_play import gathered

MakeEngine = Callable[..., AbstractAsyncContextManager[TransformersEngine]]


def ask(episode: str, **settings: Any) -> GenerateRequest:
    sampling = Sampling(**({"max_tokens": 4} | settings))
    return GenerateRequest(key=f"{episode}#0", token_ids=tuple(range(10, 20)), sampling=sampling)


def batches(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The episodes of every dispatch, recorded as they run."""
    seen: list[list[str]] = []
    run = engine._worker.run

    def recording(jobs: list[Job], everyone: bool, interrupted: Callable[[], bool]) -> None:
        seen.append([job.episode for job in jobs])
        run(jobs, everyone, interrupted)

    monkeypatch.setattr(engine._worker, "run", recording)
    return seen


async def settle(turns: int = 20) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_without_seats_concurrent_requests_share_a_batch(
    started: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started() as engine:
        seen = batches(engine, monkeypatch)
        await asyncio.gather(*(engine.generate(ask(key)) for key in "cab"))
        await engine.generate(ask("d"))
    assert seen == [["a", "b", "c"], ["d"]]


async def test_lockstep_waits_for_every_seat(started: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(context={"dispatch_wait_ms": 0}) as engine:
        seen = batches(engine, monkeypatch)
        with engine.seat(), engine.seat():
            first = asyncio.create_task(engine.generate(ask("b")))
            await asyncio.sleep(0.05)
            assert not first.done()
            assert not seen
            await asyncio.gather(first, engine.generate(ask("a")))
    assert seen == [["a", "b"]]


async def test_a_seat_that_leaves_lets_the_rest_proceed(started: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started() as engine:
        seen = batches(engine, monkeypatch)

        async def failing() -> None:
            with engine.seat():
                await asyncio.sleep(0.02)
                raise ValueError("an episode broke")

        async def waiting(key: str) -> Completion:
            with engine.seat():
                return await engine.generate(ask(key))

        results = await asyncio.wait_for(gathered(failing(), waiting("a"), waiting("b")), 20)
    assert isinstance(results[0], ValueError)
    assert seen == [["a", "b"]]


async def test_a_cancelled_request_frees_its_place(started: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started() as engine:
        seen = batches(engine, monkeypatch)

        async def episode(key: str) -> Completion:
            with engine.seat():
                return await engine.generate(ask(key))

        with engine.seat():  # keeps the batch from being due
            doomed, other = asyncio.create_task(episode("a")), asyncio.create_task(episode("b"))
            await settle()
            doomed.cancel()
            await settle()
            assert not seen
        await asyncio.wait_for(other, 20)
        with pytest.raises(asyncio.CancelledError):
            await doomed
    assert seen == [["b"]]


async def test_cancelling_a_running_request_ends_its_row(started: MakeEngine) -> None:
    async with started() as engine:
        long = asyncio.create_task(engine.generate(ask("long", max_tokens=4000)))
        await asyncio.sleep(0.1)
        assert not long.done()
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        # Served only after the running batch: a row that continued for 4000 tokens would take many seconds.
        await asyncio.wait_for(engine.generate(ask("next")), 30)


async def test_outside_lockstep_the_oldest_request_sets_the_deadline(
    started: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(lockstep=False, context={"dispatch_wait_ms": 30}) as engine:
        seen = batches(engine, monkeypatch)
        with engine.seat(), engine.seat(), engine.seat():
            await asyncio.wait_for(asyncio.gather(engine.generate(ask("a")), engine.generate(ask("b"))), 20)
    assert seen == [["a", "b"]]


async def test_load_waits_for_the_running_batch(started: MakeEngine, tiny_model: Any) -> None:
    async with started() as engine:
        running = asyncio.create_task(engine.generate(ask("old", max_tokens=100)))
        await asyncio.sleep(0.02)
        loading = asyncio.create_task(engine.load(PolicyVersion(number=7, model=str(tiny_model))))
        await settle()
        late = await engine.generate(ask("new"))
        await loading
        assert (await running).policy_version == 0
        assert late.policy_version == 7


async def test_close_ends_everything_and_later_calls_fail(started: MakeEngine, tiny_model: Any) -> None:
    async with started() as engine:
        running = asyncio.create_task(engine.generate(ask("running", max_tokens=4000)))
        await asyncio.sleep(0.05)
        with contextlib.ExitStack() as seats:
            seats.enter_context(engine.seat())
            seats.enter_context(engine.seat())
            waiting = asyncio.create_task(engine.generate(ask("waiting")))
            await settle()
            await asyncio.wait_for(engine.close(), 30)
            await engine.close()
            results = await gathered(running, waiting, engine.generate(ask("late")), engine.start())
        assert all(isinstance(result, EngineError) for result in results)
        with pytest.raises(EngineError, match="closed"):
            await engine.load(PolicyVersion(number=1, model=str(tiny_model)))


@given(
    seats=st.integers(0, 6),
    ages=st.lists(st.floats(0, 2), max_size=6),
    lockstep=st.booleans(),
    enough=st.integers(1, 8),
)
def test_the_rule(seats: int, ages: list[float], lockstep: bool, enough: int) -> None:
    now, wait = 100.0, 1.0
    loop = asyncio.new_event_loop()
    queue = RequestQueue(lockstep=lockstep, wait_seconds=wait, enough=enough, seats=seats)
    for age in sorted(ages, reverse=True):
        queue.tickets.append(Ticket(Job(ask(str(age))), loop.create_future(), now - age))
    due = queue.due_in(now)
    loop.close()
    if not ages:
        assert due is None
    elif len(ages) >= seats:
        assert due == 0, "no other request can come"
    elif lockstep:
        assert due is None
    else:
        assert due == (0 if len(ages) >= enough else pytest.approx(max(0.0, wait - max(ages))))
