from __future__ import annotations

import asyncio
import math
from contextlib import nullcontext

import pytest
from fixtures.toy_environment import (
    PROMPT,
    PROTOCOL_TROUBLE,
    SANDBOX_TROUBLE,
    SPEC,
    ToyChatEngine,
    ToyCodec,
    ToyEnvironment,
    ToyProvider,
    ToySession,
    ToyTokenEngine,
    submit,
    task,
)

from finqa_cli.contracts import Sandbox
from finqa_cli.rollout.attempts import Attempt, Player, Seat
from finqa_cli.rollout.conversation import TokenConversation
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.pool import Pool, SandboxPool
from finqa_cli.rollout.stream import play_all
from finqa_cli.types import AssistantTurn, Observation, Rewards, Sampling, Status, Task, ToolCall, Trajectory


def attempt(number: int = 0, member: int = 0) -> Attempt:
    return Attempt(id=f"t/q{number}/{member}", task=task(number), member=member, seed=number)


def player(environment: ToyEnvironment, engine: object, pool: Pool | None = None, **limits: object) -> Player:
    return Player(
        environment,
        pool or Pool(),
        engine,  # type: ignore[arg-type]
        ToyCodec(),
        limits=Limits(**limits),  # type: ignore[arg-type]
        sampling=Sampling(),
        max_retries=2,
    )


async def play(engine: object, environment: ToyEnvironment | None = None, **limits: object) -> Trajectory:
    return await player(environment or ToyEnvironment(boxed=False), engine, **limits).play(attempt(), Seat(nullcontext))


async def test_a_right_answer_is_completed_and_rewarded() -> None:
    trajectory = await play(ToyChatEngine(submit(42)))
    assert (trajectory.status, trajectory.reward, len(trajectory.turns)) == (Status.COMPLETED, 1.0, 1)
    assert trajectory.messages == PROMPT.messages and trajectory.tools == PROMPT.tools


async def test_the_models_own_mistakes_are_answered_and_played_on() -> None:
    unreadable = AssistantTurn(text="?", parse_error="no tool call found")
    unknown = AssistantTurn(text="", tool_call=ToolCall(name="nonsense", arguments={}))
    engine = ToyChatEngine(unreadable, unknown, submit(42))
    trajectory = await play(engine)
    replies = [turn.observation.text for turn in trajectory.turns if turn.observation]
    assert replies == ["Error: no tool call found", "Error: no tool nonsense", "submitted"]
    assert trajectory.reward == 1.0
    assert [message.role for message in engine.requests[-1].messages] == ["user", *["assistant", "tool"] * 2]


async def test_limits_end_an_episode_with_a_graded_typed_status() -> None:
    unreadable = AssistantTurn(text="?", parse_error="no tool call found")
    unknown = AssistantTurn(text="", tool_call=ToolCall(name="nonsense", arguments={}))
    assert (await play(ToyChatEngine(unreadable))).status is Status.PARSE_ERROR
    longest = await play(ToyChatEngine(unknown), max_turns=4)
    assert (longest.status, len(longest.turns), longest.reward) == (Status.MAX_TURNS, 4, 0.0)


@pytest.mark.parametrize("verdict", [Rewards(total=math.nan), Rewards(total=1.0, components={"close": math.inf})])
async def test_a_verdict_that_is_no_number_is_a_fault_and_no_reward(verdict: Rewards) -> None:
    class Undecided(ToySession):
        async def grade(self) -> Rewards:
            return verdict

    class UndecidedEnvironment(ToyEnvironment):
        async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> ToySession:
            return Undecided(None)

    trajectory = await play(ToyChatEngine(submit(42)), UndecidedEnvironment(boxed=False))
    assert (trajectory.status, trajectory.rewards) == (Status.ENVIRONMENT_ERROR, None)
    assert "finite number" in trajectory.error


async def test_time_limit_is_a_graded_timeout() -> None:
    class Slow(ToyChatEngine):
        async def respond(self, request: object) -> AssistantTurn:
            await asyncio.sleep(5)
            return submit(42)

    trajectory = await play(Slow(submit(42)), seconds=0.01)
    assert (trajectory.status, trajectory.reward) == (Status.TIMEOUT, 0.0)


@pytest.mark.parametrize(
    ("trouble", "status"),
    [(SANDBOX_TROUBLE, Status.SANDBOX_ERROR), (PROTOCOL_TROUBLE, Status.ENVIRONMENT_ERROR)],
)
async def test_a_fault_is_made_good_in_a_fresh_session_and_never_scored(trouble: Exception, status: Status) -> None:
    once = ToyEnvironment([trouble], boxed=False)
    trajectory = await play(ToyChatEngine(submit(42)), once)
    assert (trajectory.reward, trajectory.recoveries, len(once.sessions)) == (1.0, 1, 2)
    assert all(session.closed for session in once.sessions)

    hopeless = ToyEnvironment([trouble] * 9, boxed=False)
    always = await play(ToyChatEngine(submit(42)), hopeless)
    assert (always.status, always.reward, len(hopeless.sessions)) == (status, None, 3)
    assert always.error == str(trouble)


async def test_a_dead_sandbox_is_replaced_and_a_living_one_kept() -> None:
    provider = ToyProvider()
    pool = SandboxPool(provider, SPEC, size=1, max_concurrent_create=4, labels={})
    await pool.start()
    environment = ToyEnvironment([SANDBOX_TROUBLE], kill=True)
    trajectory = await player(environment, ToyChatEngine(submit(42)), pool).play(attempt(), Seat(nullcontext))
    assert (trajectory.reward, trajectory.recoveries) == (1.0, 1)
    assert [sandbox.dead for sandbox in provider.sandboxes] == [True, False] and pool.alive == 1
    again = ToyEnvironment([SANDBOX_TROUBLE])
    assert (await player(again, ToyChatEngine(submit(42)), pool).play(attempt(), Seat(nullcontext))).reward == 1.0
    assert len(provider.sandboxes) == 2
    await pool.close()
    assert provider.closed


async def test_a_pool_that_cannot_start_any_sandbox_gives_the_reason_as_a_fault() -> None:
    pool = SandboxPool(ToyProvider(failures=99), SPEC, size=3, max_concurrent_create=2, labels={})
    await pool.start()
    trajectory = await player(ToyEnvironment(), ToyChatEngine(submit(42)), pool).play(attempt(), Seat(nullcontext))
    assert (trajectory.status, trajectory.error) == (Status.SANDBOX_ERROR, "no room for another sandbox")
    await pool.close()


async def test_waiting_leases_survive_failed_starts_when_another_sandbox_comes_up() -> None:
    pool = SandboxPool(ToyProvider(failures=2), SPEC, size=3, max_concurrent_create=1, labels={})
    await pool.start()
    one = player(ToyEnvironment(), ToyChatEngine(submit(42)), pool)
    trajectories = await play_all(
        one, [attempt(number) for number in range(6)], concurrency=6, on_trajectory=lambda _: None
    )
    assert [trajectory.reward for trajectory in trajectories] == [1.0] * 6
    await pool.close()


async def test_the_token_sequence_is_only_ever_appended_to() -> None:
    engine = ToyTokenEngine()
    talk = TokenConversation(engine, ToyCodec(), PROMPT, key="k", sampling=Sampling())
    with engine.seat():
        first = await talk.respond()
        talk.observe(Observation(text="reply"), tools=["x"])
        second = await talk.respond()
    assert first.prompt_ids == (5, 6) and first.completion_ids == (21, 1)
    assert second.prompt_ids == (7,)
    assert second.completion_ids[0] == (5 + 6 + 21 + 1 + 7) % 50 + 10
    assert (first.policy_version, first.logprobs) == (3, (-0.5, -0.1))


async def test_a_full_context_ends_the_episode_with_its_own_status() -> None:
    class Endless(ToyCodec):
        def parse(self, completion_ids: tuple[int, ...]) -> AssistantTurn:
            return AssistantTurn(text="", tool_call=ToolCall(name="nonsense", arguments={}))

    one = Player(
        ToyEnvironment(boxed=False),
        Pool(),
        ToyTokenEngine(),  # type: ignore[arg-type]
        Endless(),
        limits=Limits(max_turns=100),
        sampling=Sampling(),
        max_retries=0,
    )
    with one.seat() as seat:
        trajectory = await one.play(attempt(), seat)
    assert trajectory.status is Status.MAX_TOKENS and trajectory.reward == 0.0
    tokens = sum(len(turn.prompt_ids) + len(turn.completion_ids) for turn in trajectory.turns)
    assert 60 <= tokens <= 66


async def test_lockstep_batches_do_not_depend_on_who_finishes_first() -> None:
    class Jittery(ToyEnvironment):
        def __init__(self, order: list[int]) -> None:
            super().__init__(boxed=False)
            self._order = order

        async def open(self, task: object, *, seed: int, sandbox: object) -> object:  # type: ignore[override]
            await asyncio.sleep(0.001 * self._order[seed % len(self._order)])
            return await super().open(task, seed=seed, sandbox=None)  # type: ignore[arg-type]

    seen = []
    for order in ([0, 3, 1, 2], [2, 0, 3, 1]):
        engine = ToyTokenEngine()
        one = player(Jittery(order), engine, max_turns=3, max_parse_errors=9)
        finished = await play_all(
            one, [attempt(number) for number in range(7)], concurrency=3, on_trajectory=lambda _: None
        )
        seen.append((engine.batches, [trajectory.turns[-1].completion_ids for trajectory in finished]))
        assert engine.seats == 0
    assert seen[0] == seen[1]


async def test_stopping_lets_running_attempts_finish_and_starts_no_more() -> None:
    heard: list[Trajectory] = []
    one = player(ToyEnvironment(boxed=False), ToyChatEngine(submit(42)))
    finished = await play_all(
        one,
        [attempt(number) for number in range(9)],
        concurrency=2,
        on_trajectory=heard.append,
        stopping=lambda: len(heard) >= 3,
    )
    assert 3 <= len(finished) <= 5 and len(finished) == len(heard)


async def test_an_episode_without_a_sandbox_does_not_stop_the_others() -> None:
    """In lockstep a seat that waits for a sandbox would be waited for; so it is left until there is one."""
    pool = SandboxPool(ToyProvider(failures=2), SPEC, size=3, max_concurrent_create=1, labels={})
    await pool.start()
    await pool.settled()
    assert pool.alive == 1
    engine = ToyTokenEngine()
    one = player(ToyEnvironment(), engine, pool, max_turns=3, max_parse_errors=9)
    async with asyncio.timeout(60):
        finished = await play_all(
            one, [attempt(number) for number in range(6)], concurrency=3, on_trajectory=lambda _: None
        )
    assert len(finished) == 6 and engine.seats == 0
    await pool.close()


async def test_sandboxes_that_died_together_are_replaced_together() -> None:
    provider = ToyProvider()
    pool = SandboxPool(provider, SPEC, size=8, max_concurrent_create=8, labels={})
    await pool.start()
    await pool.settled()
    for sandbox in provider.sandboxes:
        sandbox.dead = True
    environment = ToyEnvironment([SANDBOX_TROUBLE])
    assert (await player(environment, ToyChatEngine(submit(42)), pool).play(attempt(), Seat(nullcontext))).reward == 1.0
    await pool.settled()
    assert pool.alive == 8 and [sandbox.dead for sandbox in provider.sandboxes] == [True] * 8 + [False] * 8
    await pool.close()


async def test_a_sandbox_that_cannot_be_stopped_is_replaced_all_the_same() -> None:
    class Stuck(ToyProvider):
        async def start(self, spec: object, labels: object) -> object:  # type: ignore[override]
            sandbox = await super().start(spec, labels)  # type: ignore[arg-type]

            async def refuse() -> None:
                raise OSError("the provider does not answer")

            sandbox.stop = refuse  # type: ignore[method-assign]
            return sandbox

    pool = SandboxPool(Stuck(), SPEC, size=1, max_concurrent_create=1, labels={})  # type: ignore[arg-type]
    await pool.start()
    environment = ToyEnvironment([SANDBOX_TROUBLE], kill=True)
    trajectory = await player(environment, ToyChatEngine(submit(42)), pool).play(attempt(), Seat(nullcontext))
    assert (trajectory.reward, pool.alive) == (1.0, 1)
    await pool.close()
