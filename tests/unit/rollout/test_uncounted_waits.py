"""Waiting for an engine does not use up an episode's time; the thinking of a chat engine does."""

from __future__ import annotations

import asyncio

import pytest
from fixtures.toy_environment import (
    ToyChatEngine,
    ToyCodec,
    ToyEnvironment,
    ToySession,
    ToyTokenEngine,
    submit,
    task,
)
from fixtures.virtual_time import run_virtually

from finqa_cli.contracts import Sandbox, Session, uncounted
from finqa_cli.rollout.attempts import Attempt, Player
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.pool import Pool
from finqa_cli.types import (
    AssistantTurn,
    ChatRequest,
    Completion,
    GenerateRequest,
    Observation,
    Sampling,
    Status,
    Task,
    ToolCall,
)
from finqa_plugins.engines._http.http_client import Gate


class SlowEngine(ToyChatEngine):
    def __init__(self, waits_s: float, thinks_s: float) -> None:
        super().__init__(submit(42))
        self.waits_s, self.thinks_s = waits_s, thinks_s

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        with uncounted.get()():
            await asyncio.sleep(self.waits_s)
        await asyncio.sleep(self.thinks_s)
        return await super().respond(request)


@pytest.mark.parametrize(
    ("waits_s", "thinks_s", "status"), [(300, 5, "completed"), (0, 11, "timeout"), (300, 11, "timeout")]
)
def test_only_what_the_policy_does_counts(waits_s: float, thinks_s: float, status: str) -> None:
    async def scene() -> None:
        player = Player(
            ToyEnvironment(boxed=False),
            Pool(),
            SlowEngine(waits_s, thinks_s),
            ToyCodec(),
            limits=Limits(seconds=10),
            sampling=Sampling(),
            max_retries=0,
        )
        with player.seat() as seat:
            played = await player.play(Attempt(id="t/0", task=task(0), member=0, seed=0), seat)
        assert played.status == Status(status)

    run_virtually(scene())


def test_outside_of_episodes_it_means_nothing() -> None:
    with uncounted.get()():
        pass


class SlowTokenEngine(ToyTokenEngine):
    """Its completions are ready at once; before that they queue."""

    def __init__(self, queues_s: float) -> None:
        super().__init__()
        self.queues_s = queues_s

    async def generate(self, request: GenerateRequest) -> Completion:
        await asyncio.sleep(self.queues_s)
        return await super().generate(request)


def test_the_queue_of_a_token_engine_does_not_count() -> None:
    """Two turns of 3,000 s within a limit of 10."""

    async def scene() -> None:
        player = Player(
            ToyEnvironment(boxed=False),
            Pool(),
            SlowTokenEngine(3000),
            ToyCodec(),
            limits=Limits(seconds=10),
            sampling=Sampling(),
            max_retries=0,
        )
        with player.seat() as seat:
            played = await player.play(Attempt(id="t/0", task=task(0), member=0, seed=0), seat)
        assert (played.status, len(played.turns)) == (Status.COMPLETED, 2)

    run_virtually(scene())


def test_a_wait_for_a_free_place_does_not_count() -> None:
    """Two clients of one place: the second waits 300 s for it, and asks for 5 s itself."""

    class Placed(ToyChatEngine):
        gate = Gate(places=1)

        def __init__(self, asks_s: float) -> None:
            super().__init__(submit(42))
            self.asks_s = asks_s

        async def respond(self, request: ChatRequest) -> AssistantTurn:
            async with self.gate.place(1):
                await asyncio.sleep(self.asks_s)
            return await super().respond(request)

    async def play(asks_s: float) -> Status:
        player = Player(
            ToyEnvironment(boxed=False),
            Pool(),
            Placed(asks_s),
            ToyCodec(),
            limits=Limits(seconds=10 if asks_s < 10 else 0),
            sampling=Sampling(),
            max_retries=0,
        )
        with player.seat() as seat:
            return (await player.play(Attempt(id="t/0", task=task(0), member=0, seed=0), seat)).status

    async def scene() -> None:
        assert await asyncio.gather(play(300), play(5)) == [Status.COMPLETED, Status.COMPLETED]

    run_virtually(scene())


@pytest.mark.parametrize(
    ("queues_s", "runs_s", "status"), [(3000, 2, "completed"), (0, 11, "timeout"), (3000, 11, "timeout")]
)
def test_the_queue_of_a_server_does_not_count(queues_s: float, runs_s: float, status: str) -> None:
    """A call that waits there, before and after some work, within a limit of 10 s; then an answer."""

    class QueueingSession(ToySession):
        async def step(self, call: ToolCall) -> Observation:
            if call.name != "submit":
                for _ in range(2):
                    await asyncio.sleep(runs_s / 2)
                    with uncounted.get()():
                        await asyncio.sleep(queues_s)
            return await super().step(call)

    class QueueingEnvironment(ToyEnvironment):
        async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> Session:
            return QueueingSession(None)

    async def scene() -> None:
        player = Player(
            QueueingEnvironment(boxed=False),
            Pool(),
            ToyChatEngine(AssistantTurn(text="", tool_call=ToolCall(name="look", arguments={})), submit(42)),
            ToyCodec(),
            limits=Limits(seconds=10),
            sampling=Sampling(),
            max_retries=0,
        )
        with player.seat() as seat:
            played = await player.play(Attempt(id="t/0", task=task(0), member=0, seed=0), seat)
        assert played.status == Status(status)

    run_virtually(scene())
