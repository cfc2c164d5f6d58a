"""A dead engine ends a run soon, with its reason; one that works now and then does not."""

from __future__ import annotations

import pytest
from fixtures.toy_environment import ToyChatEngine, ToyCodec, ToyEnvironment, submit, task
from fixtures.virtual_time import run_virtually

from finqa_cli.errors import EngineError, ServiceUnavailableError
from finqa_cli.rollout.attempts import Attempt, Player
from finqa_cli.rollout.breaker import EngineBreaker
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.pool import Pool
from finqa_cli.rollout.stream import play_all
from finqa_cli.types import AssistantTurn, ChatRequest, Sampling, Status, Trajectory


class FailingEngine(ToyChatEngine):
    """Fails but for every `works`-th request; 0: always."""

    def __init__(self, works: int) -> None:
        super().__init__(submit(42))
        self.works = works

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        turn = await super().respond(request)
        if self.works and not len(self.requests) % self.works:
            return turn
        raise EngineError("No server answers at http://localhost:1.", remedy="start the server")


def play(engine: FailingEngine, heard: list[Trajectory]) -> list[Trajectory]:
    player = Player(
        ToyEnvironment(boxed=False),
        Pool(),
        engine,
        ToyCodec(),
        limits=Limits(),
        sampling=Sampling(),
        max_retries=3,
        breaker=EngineBreaker(4),
    )
    attempts = [Attempt(id=f"t/{number}", task=task(number), member=0, seed=number) for number in range(60)]
    return run_virtually(play_all(player, attempts, concurrency=4, on_trajectory=heard.append))


def test_a_dead_engine_ends_the_run_with_its_reason() -> None:
    engine, heard = FailingEngine(works=0), list[Trajectory]()
    with pytest.raises(ServiceUnavailableError, match=r"latest 20 attempts .* No server answers at") as raised:
        play(engine, heard)
    assert not isinstance(raised.value, EngineError) and raised.value.remedy == "start the server"
    assert len(engine.requests) < 30, "60 episodes with 3 retries each would be 240"


def test_an_engine_that_works_now_and_then_is_kept() -> None:
    engine, heard = FailingEngine(works=6), list[Trajectory]()
    played = play(engine, heard)
    assert len(played) == 60
    assert {trajectory.status for trajectory in played} == {Status.COMPLETED, Status.ENGINE_ERROR}
