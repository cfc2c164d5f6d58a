"""Rows that end early, requests that join a running batch, guests, and versions that are loaded meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from finqa_cli.types import GenerateRequest, PolicyVersion, Sampling
from finqa_plugins.engines.transformers.decode import Job
from finqa_plugins.engines.transformers.transformers_engine import RequestQueue, Ticket, TransformersEngine
from finqa_testing.contract.engine_play import VOCABULARY, Played, play_episodes, worst_difference

MakeEngine = Callable[..., AbstractAsyncContextManager[TransformersEngine]]
MakeAdapter = Callable[..., Path]


def ask(key: str, *, length: int = 10, max_tokens: int = 4, seed: int = 0) -> GenerateRequest:
    token_ids = tuple(random.Random(length).randrange(VOCABULARY) for _ in range(length))
    return GenerateRequest(key=key, token_ids=token_ids, sampling=Sampling(max_tokens=max_tokens, seed=seed))


@pytest.mark.parametrize("lockstep", [True, False])
async def test_a_row_is_answered_when_it_ends_not_when_its_batch_ends(started: MakeEngine, lockstep: bool) -> None:
    async with started(lockstep=lockstep) as engine:
        long = asyncio.create_task(engine.generate(ask("long#0", max_tokens=600)))
        short = asyncio.create_task(engine.generate(ask("short#0")))
        await asyncio.wait_for(short, 20)
        assert not long.done()
        assert len((await long).token_ids) == 600


@pytest.mark.parametrize(
    "options",
    [
        {},
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in ({"kv_cache_gb": 0}, {"max_batch": 2}, {"kv_cache_gb": 0.0001})
        ),
    ],
)
async def test_those_who_wait_join_a_running_batch_and_change_no_token(
    started: MakeEngine, tiny_model: Path, options: dict[str, float]
) -> None:
    requests = [ask(f"long-{seed}#0", length=40, max_tokens=400, seed=seed) for seed in range(3)]
    requests.append(ask("guest", length=90, max_tokens=400, seed=9))
    newcomers = [ask(f"new-{n}#0", length=20 + 150 * n, max_tokens=30, seed=n) for n in range(4)]
    async with started(lockstep=False, **options) as engine:
        running = [asyncio.create_task(engine.generate(request)) for request in requests]
        late = [await asyncio.wait_for(engine.generate(newcomers[0]), 20)]
        assert not any(task.done() for task in running), "it waited for the longest row"
        late += [await asyncio.wait_for(engine.generate(newcomer), 20) for newcomer in newcomers[1:]]
        played: list[Played] = list(zip([*requests, *newcomers], [*await asyncio.gather(*running), *late], strict=True))
    async with started() as engine:
        alone = [await engine.generate(request) for request, _ in played]
    assert [completion.token_ids for completion in alone] == [completion.token_ids for _, completion in played]
    assert worst_difference(tiny_model, played) <= 1e-4


async def test_no_length_starves_while_others_keep_joining(started: MakeEngine) -> None:
    async with started(lockstep=False, context={"dispatch_wait_ms": 0}) as engine:
        long = asyncio.create_task(engine.generate(ask("long#0", length=900, max_tokens=60)))
        await asyncio.sleep(0.02)

        async def stream(name: str) -> int:
            turns = 0
            while not long.done():
                await engine.generate(ask(f"{name}#{turns}", max_tokens=40, seed=turns))
                turns += 1
            return turns

        turns = await asyncio.wait_for(asyncio.gather(stream("a"), stream("b")), 30)
    assert max(turns) < 40, "60 tokens of one row took as long as 1600 of its neighbours"


@pytest.mark.parametrize("lockstep", [True, False])
async def test_versions_loaded_while_episodes_go_on_serve_whole_completions(
    started: MakeEngine, tiny_model: Path, adapter: MakeAdapter, lockstep: bool
) -> None:
    """As in asynchronous training: several iterations' episodes at once, loads at any time, and guests."""
    folders = [adapter(seed) for seed in (1, 2, 3)]
    async with started(lockstep=lockstep) as engine:
        played: list[Played] = []

        async def collection(seed: int, delay: float) -> None:
            await asyncio.sleep(delay)
            played.extend(await play_episodes(engine, count=8, seed=seed))

        async def learner() -> None:
            for number, folder in enumerate(folders, start=1):
                await asyncio.sleep(0.05)
                await engine.load(PolicyVersion(number=number, model=str(tiny_model), adapter=folder))
                guest = ask("guest", max_tokens=8, seed=number)
                completion = await engine.generate(guest)
                assert completion.policy_version == number
                played.append((guest, completion))

        await asyncio.wait_for(asyncio.gather(learner(), *(collection(n, 0.04 * n) for n in range(4))), 60)
    by_version = {number: [pair for pair in played if pair[1].policy_version == number] for number in range(4)}
    assert sum(map(len, by_version.values())) == len(played)
    assert min(map(len, by_version.values())) > 0
    for number, folder in enumerate([None, *folders]):
        assert worst_difference(tiny_model, by_version[number], folder) <= 1e-4, "it is another version's"


async def test_guests_change_no_bit_of_the_episodes_in_lockstep(started: MakeEngine) -> None:
    async with started() as engine:
        quiet = await play_episodes(engine)
    async with started() as engine:
        episodes = asyncio.create_task(play_episodes(engine))
        guests = 0
        while not episodes.done():
            like_theirs = replace(ask("guest", max_tokens=6), token_ids=quiet[0][0].token_ids)
            assert len((await asyncio.wait_for(engine.generate(like_theirs), 20)).token_ids) == 6
            guests += 1
        disturbed = await episodes
    assert guests > 3
    assert disturbed == quiet


async def test_a_guest_does_not_wait_for_seats(started: MakeEngine) -> None:
    async with started(context={"dispatch_wait_ms": 60_000}) as engine:
        with engine.seat(), engine.seat():
            waiting = asyncio.create_task(engine.generate(ask("a#0")))
            await asyncio.wait_for(engine.generate(ask("guest")), 30)
            assert not waiting.done()
            await asyncio.wait_for(asyncio.gather(waiting, engine.generate(ask("b#0"))), 30)


def test_who_joins() -> None:
    loop = asyncio.new_event_loop()
    queue = RequestQueue(lockstep=False, wait_seconds=1.0, enough=64)
    assert queue.joins_in(100.0, 8) is None, "no request waits"
    queue.tickets = [Ticket(Job(ask(f"{n}#0")), loop.create_future(), 99.6) for n in range(3)]
    loop.close()
    assert queue.joins_in(100.0, 0) is None, "nothing is decoded: a batch of its own is next"
    assert queue.joins_in(100.0, 8) == pytest.approx(0.6)
    assert queue.joins_in(100.0, 3) == 0
    assert queue.joins_in(101.0, 8) == 0
    queue.lockstep = True
    assert queue.joins_in(101.0, 3) is None
