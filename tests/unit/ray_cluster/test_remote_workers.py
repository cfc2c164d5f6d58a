"""Rollout workers without Ray: their processes are objects here, which may die at any moment."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from fixtures.fake_sandboxes import SPEC
from fixtures.timed_environment import TimedEnvironment, run_timed
from fixtures.toy_environment import ToyChatEngine, ToyCodec, ToyEnvironment, submit, task
from fixtures.worker_world import World
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.contracts import Environment, TokenEngine, uncounted
from finqa_cli.errors import (
    AuthenticationError,
    ConfigError,
    EngineError,
    FinqaError,
    LostWorkerError,
    SandboxError,
    ServiceUnavailableError,
)
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.players import Rules
from finqa_cli.rollout.pool import Pool
from finqa_cli.types import (
    AssistantTurn,
    ChatRequest,
    Completion,
    GenerateRequest,
    PolicyVersion,
    Sampling,
    Status,
    Trajectory,
)
from finqa_ray.workers.relayed_engine import ReportQueue
from finqa_ray.workers.rollout_worker import RolloutWorker, Scene
from finqa_ray.workers.worker_messages import portable
from finqa_ray.workers.worker_shares import choose_worker, share_out


def timed(seed: int = 0) -> TimedEnvironment:
    return TimedEnvironment(length=lambda about, seed: 1 + random.Random(seed).randrange(5))


@settings(max_examples=30)
@given(
    st.dictionaries(st.integers(0, 30), st.integers(0, 20), min_size=1),
    st.lists(st.integers(1, 50), min_size=31, max_size=31),
)
def test_the_least_loaded_worker_for_its_share_plays(loads: dict[int, int], shares: list[int]) -> None:
    chosen = choose_worker(loads, shares)
    assert all((loads[chosen] + 1) / shares[chosen] <= (loads[one] + 1) / shares[one] for one in loads)


@settings(max_examples=30)
@given(st.integers(1, 1000), st.integers(1, 60))
def test_shares_differ_by_one_at_most(total: int, workers: int) -> None:
    shares = share_out(total, workers)
    assert sum(shares) == total and len(shares) == workers and max(shares) - min(shares) <= 1


def test_workers_play_what_one_process_plays() -> None:
    async def one() -> list[Trajectory]:
        return await World(timed(), ToyChatEngine(submit(1)), workers=1).play(20)

    async def three() -> list[Trajectory]:
        return await World(timed(), ToyChatEngine(submit(1)), workers=3).play(20)

    alone, shared = run_timed(one())[0], run_timed(three())[0]
    facts = [(each.id, each.seed, each.status, each.rewards, len(each.turns)) for each in alone]
    assert facts == [(each.id, each.seed, each.status, each.rewards, len(each.turns)) for each in shared]


def test_what_environments_of_workers_used_is_counted_also_of_lost_and_stopped_ones() -> None:
    class Judging(TimedEnvironment):
        """Pays for each attempt, and once more when it is closed."""

        used = 0

        def spent(self) -> Mapping[str, float]:
            return {"requests": self.used, "cost_usd": 0.5 * self.used}

        async def open(self, *arguments: Any, **named: Any) -> Any:
            self.used += 1
            return await super().open(*arguments, **named)

        async def close(self) -> None:
            self.used += 1

    started: list[Judging] = []

    def make(number: int, generation: int) -> Callable[[], RolloutWorker]:
        async def build(queue: ReportQueue) -> Scene:
            started.append(Judging(length=lambda about, seed: 3))
            return Scene(environment=started[-1], pool=Pool(), codec=None)

        return lambda: RolloutWorker(build)

    world = World(timed(), ToyChatEngine(submit(1)), workers=1, make=make)

    async def lose() -> None:
        await asyncio.sleep(8.0)
        world.processes.alive()[0].kill()

    run_timed(world.play(20, during=lose))
    assert len(world.heard("worker_lost")) == 1 and len(started) == 2
    lost, stopped = (one.used for one in started)
    used = world.workers.spent()
    assert 0 < used["requests"] - stopped <= lost, "the lost one up to its last report, the stopped one to its end"
    assert used["cost_usd"] == 0.5 * used["requests"]


@settings(max_examples=4, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 12), st.integers(0, 2)), max_size=6))
def test_attempts_of_lost_workers_are_played_again_under_their_seeds_and_count_once(
    deaths: list[tuple[float, int]],
) -> None:
    async def scene() -> tuple[World, list[Trajectory]]:
        world = World(timed(), ToyChatEngine(submit(1)), workers=3)

        async def die() -> None:
            for pause_s, number in deaths:
                await asyncio.sleep(pause_s)
                if alive := world.processes.alive():
                    alive[number % len(alive)].kill()

        return world, await world.play(16, during=die)

    async def undisturbed() -> list[Trajectory]:
        return await World(timed(), ToyChatEngine(submit(1)), workers=3).play(16)

    world, played = run_timed(scene())[0]
    expected = run_timed(undisturbed())[0]
    assert [(each.id, each.seed, each.status, each.rewards) for each in played] == [
        (each.id, each.seed, each.status, each.rewards) for each in expected
    ]
    assert all(each.retries == 0 for each in played), "a lost worker is no retry"
    for lost in world.heard("worker_lost"):
        assert (lost["worker"], lost["generation"]) in world.lost, "its sandboxes are looked for"


def test_sandboxes_are_shared_and_figures_are_those_of_all_workers() -> None:
    class Sandboxed(TimedEnvironment):
        def sandbox_spec(self) -> Any:
            return SPEC

    async def scene() -> World:
        world = World(Sandboxed(length=lambda about, seed: 2), ToyChatEngine(submit(1)), sandboxes=5)

        async def look() -> None:
            await asyncio.sleep(6)
            stats = world.workers.stats()
            assert (stats.size, stats.alive, stats.leased) == (5, 5, 5), stats
            world.processes.started[0].kill()

        await world.play(40, at_once=5, during=look)
        return world

    world, _ = run_timed(scene())
    assert [len(provider.sandboxes) for provider in world.providers] == [3, 2, 3]
    assert Counter(facts["worker"] for facts in world.heard("sandbox_ready")) == {0: 6, 1: 2}
    assert world.heard("worker_lost")[0]["attempts"] == 3 and len(world.heard("worker_back")) == 1
    assert world.workers.stats().lost == 3, "the sandboxes of the lost worker"
    assert all(not provider.alive() for provider in world.providers[1:])


def test_what_an_earlier_start_still_says_is_not_taken() -> None:
    async def scene() -> None:
        world = World(timed(), ToyChatEngine(submit(1)), workers=1)

        async def cut() -> None:
            await asyncio.sleep(2.5)
            first = world.processes.started[0]
            with pytest.raises(LostWorkerError, match="start 1 of the worker, and the call is for 2"):
                await first.made.collect(2)
            late = await first.made.collect(1)
            first.kill()
            while len(world.processes.started) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            for report in late.reports:
                world.workers._take(world.workers._workers[0], report)

        played = await world.play(6, at_once=6, during=cut)
        assert [each.id for each in played] == [f"e{one}" for one in range(6)]

    run_timed(scene())


def test_without_a_worker_attempts_wait_and_at_last_the_run_ends() -> None:
    async def scene(back: bool) -> tuple[World, list[Trajectory]]:
        world = World(timed(), ToyChatEngine(submit(1)), free=2)

        async def die() -> None:
            await asyncio.sleep(2.2)
            for process in world.processes.alive():
                process.kill()
            if back:
                await asyncio.sleep(100)
                world.processes.free = 1
                world.processes.room.set()

        return world, await world.play(12, during=die)

    (world, played), seconds = run_timed(scene(True))
    assert len(played) == 12 and seconds > 100 and len(world.heard("worker_lost")) == 2
    with pytest.raises(ServiceUnavailableError, match=r"no rollout worker\. The last one: it is gone"):
        run_timed(scene(False))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_breaker_judges_the_sandboxes_of_all_workers(share: float) -> None:
    """Each worker has too few sandboxes for a verdict of its own."""

    async def scene() -> World:
        trouble = [SandboxError("the sandbox is gone")] * 60
        environment = ToyEnvironment(trouble)
        world = World(environment, ToyChatEngine(submit(42)), workers=4, sandboxes=20, breaker_share=share or 0.3)
        world.rules = Rules(limits=Limits(), sampling=Sampling(), max_retries=0)
        world.environment = _Plain(environment)
        await world.play(60, at_once=20)
        return world

    if share:
        world, _ = run_timed(scene())
        assert not world.heard("breaker_open")
    else:
        with pytest.raises(ServiceUnavailableError, match="starts and sessions of sandboxes failed"):
            run_timed(scene())


class _Plain(Environment):
    """The environment with sandboxes that it does not look at."""

    def __init__(self, inner: ToyEnvironment) -> None:
        self._inner = inner
        self.data, self.splits, self.tasks = inner.data, inner.splits, inner.tasks  # type: ignore[method-assign]

    def sandbox_spec(self) -> Any:
        return SPEC

    async def open(self, task: Any, *, seed: int, sandbox: Any) -> Any:
        return await self._inner.open(task, seed=seed, sandbox=None)

    def data(self) -> Any: ...

    def splits(self) -> Any: ...

    def tasks(self, split: str) -> Any: ...


class Failing(ToyChatEngine):
    async def respond(self, request: ChatRequest) -> AssistantTurn:
        raise EngineError("the server is gone", remedy="start it")


def test_faults_of_the_engine_are_counted_over_all_workers() -> None:
    async def scene() -> list[Trajectory]:
        return await World(ToyEnvironment(boxed=False), Failing(), sandboxes=10).play(100)

    with pytest.raises(ServiceUnavailableError, match="attempts in a row failed because of the engine") as caught:
        run_timed(scene())
    assert caught.value.remedy == "start it"


def test_a_fault_is_tried_again_by_the_worker_and_stays_a_fault() -> None:
    async def scene() -> tuple[World, list[Trajectory]]:
        world = World(ToyEnvironment([EngineError("no")], boxed=False), ToyChatEngine(submit(42)))
        return world, await world.play(1)

    world, (played,) = run_timed(scene())[0]
    assert (played.status, played.retries) == (Status.COMPLETED, 1)
    assert [one.status for one in world.restarted] == [Status.ENGINE_ERROR]


class Adding(TokenEngine):
    """Without lockstep: the completion is the sum of the prompt, and a stop id."""

    max_context = 64

    def __init__(self) -> None:
        self.version = 0
        self.cancelled = 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def load(self, policy: PolicyVersion) -> None:
        self.version = policy.number

    async def generate(self, request: GenerateRequest) -> Completion:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        ids = (sum(request.token_ids) % 50 + 10, 1)
        return Completion(token_ids=ids, logprobs=(-0.5, -0.1), stop="stop", policy_version=self.version)

    def usage(self, episode: str) -> Mapping[str, Any]:
        return {"requests": 1, "episode": episode}


def test_tokens_versions_and_usage_are_those_of_the_controllers_engine() -> None:
    engine = Adding()

    async def scene() -> list[Trajectory]:
        engine.version = 7
        return await World(ToyEnvironment(boxed=False), engine, codec=ToyCodec()).play(3)

    for played in run_timed(scene())[0]:
        assert {turn.policy_version for turn in played.turns} == {7} and played.sampled_tokens
        assert played.metadata["usage"] == {"requests": 1, "episode": played.id}


def test_a_cancelled_attempt_frees_its_place_at_the_engine() -> None:
    engine = Adding()

    async def scene() -> None:
        world = World(ToyEnvironment(boxed=False), engine, codec=ToyCodec())
        await world.workers.start()
        await world.workers.ready()
        attempt = Attempt(id="e", task=task(0), member=0, seed=0)
        playing = asyncio.create_task(world.workers.play(attempt, world.rules))
        await asyncio.sleep(0.5)
        playing.cancel()
        await asyncio.sleep(0.5)
        assert engine.cancelled == 1 and not world.workers._pending
        assert not any(worker.tickets or worker.asked for worker in world.workers._workers)
        await world.workers.close()

    run_timed(scene())


class Queueing(ToyChatEngine):
    """Waits for leave to ask, which is not the policy's time."""

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        with uncounted.get()():
            await asyncio.sleep(50)
        return await super().respond(request)


def test_waits_of_the_engine_do_not_count_for_the_time_limit_of_an_episode() -> None:
    async def scene() -> list[Trajectory]:
        world = World(ToyEnvironment(boxed=False), Queueing(submit(42)))
        world.rules = Rules(limits=Limits(seconds=5), sampling=Sampling(), max_retries=0)
        return await world.play(2)

    assert [each.status for each in run_timed(scene())[0]] == [Status.COMPLETED] * 2


def test_other_data_on_a_node_and_what_a_worker_cannot_have_end_the_run() -> None:
    async def scene(**facts: Any) -> None:
        await World(facts.pop("environment"), ToyChatEngine(submit(1)), **facts).play(1)

    with pytest.raises(ConfigError, match="node0 has other data than the controller") as other:
        run_timed(scene(environment=ToyEnvironment(boxed=False), digest="sha256:1"))
    assert other.value.remedy.startswith("copy the data")
    refused = AuthenticationError("the key is refused", remedy="export KEY")
    with pytest.raises(AuthenticationError, match="the key is refused") as caught:
        run_timed(scene(environment=_Plain(ToyEnvironment()), failing=lambda number: refused))
    assert caught.value.remedy == "export KEY"


def test_an_error_of_a_strange_class_arrives_as_its_words() -> None:
    class Local(FinqaError):
        pass

    assert portable(Local("what", remedy="how")).remedy == "how"
    assert portable(ValueError("odd")).message == "ValueError: odd"
    assert isinstance(portable(SandboxError("gone")), SandboxError)
