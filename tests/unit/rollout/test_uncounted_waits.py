"""Waiting for a rate limit does not use up an episode's time; thinking does."""

from __future__ import annotations

import asyncio

import pytest
from fixtures.toy_environment import ToyChatEngine, ToyCodec, ToyEnvironment, submit, task
from fixtures.virtual_time import run_virtually

from finqa_cli.contracts import uncounted
from finqa_cli.rollout.attempts import Attempt, Player
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.pool import NoSandboxes
from finqa_cli.types import AssistantTurn, ChatRequest, Sampling, Status


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
            NoSandboxes(),
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
