"""Episodes whose session is lost at any place: they go on in a fresh one as if nothing had happened, or start again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from fixtures.timed_environment import run_timed
from fixtures.toy_environment import (
    PROMPT,
    SPEC,
    ToyChatEngine,
    ToyCodec,
    ToyEnvironment,
    ToyProvider,
    ToySandbox,
    submit,
    task,
)

from finqa_cli.contracts import Sandbox, Session, TextSession
from finqa_cli.errors import (
    CodeFault,
    EngineError,
    EnvironmentFault,
    EpisodeError,
    SandboxError,
    ServiceUnavailableError,
)
from finqa_cli.rollout.attempts import Attempt, Player, Seat
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.pool import Pool, SandboxPool, Waiting
from finqa_cli.rollout.stream import play_all
from finqa_cli.types import (
    AssistantTurn,
    ChatRequest,
    Message,
    Observation,
    Prompt,
    Rewards,
    Sampling,
    Status,
    Task,
    ToolCall,
    Trajectory,
)

LOST = SandboxError("the connection was lost")
GARBLED = EnvironmentFault("the server answered nonsense")
CALLS = 5
"""Of a whole episode: four look-ups and the answer."""


def look(place: int) -> AssistantTurn:
    return AssistantTurn(text="", tool_call=ToolCall(name="look", arguments={"at": place}))


SCRIPT = (*(look(place) for place in range(CALLS - 1)), submit(42))


class Lossy(ToyEnvironment):
    """Faults by the number of the session and of the request in it: its calls from 0, then the verdict, -1 is opening.

    `drift` changes what later sessions see at that call.
    """

    def __init__(
        self, faults: dict[tuple[int, int], EpisodeError], *, drift: int | None = None, texts: bool = False
    ) -> None:
        super().__init__(boxed=False)
        self.faults = faults
        self.drift = drift
        self.texts = texts
        self.sandboxes: list[Sandbox | None] = []
        self.closed = 0
        self.heard: list[list[object]] = []

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> Any:
        session = len(self.heard)
        self.heard.append([])
        self.sandboxes.append(sandbox)
        if fault := self.faults.get((session, -1)):
            self.closed += 1
            raise fault
        return (LossyTexts if self.texts else LossySession)(self, session, seed, sandbox)

    async def delay(self, session: LossyBase, said: object) -> None:
        """Called before a session receives a request, for subclasses that let it wait or fail."""


class LossyBase:
    def __init__(self, world: Lossy, number: int, seed: int, sandbox: Sandbox | None) -> None:
        self.world = world
        self.number = number
        self.seed = seed
        self.sandbox = sandbox
        self.calls = 0
        self.answer: object = None

    def prompt(self) -> Prompt:
        if self.world.drift == -1 and self.number:
            return Prompt(messages=(Message(role="user", content="Another one?"),), tools=())
        return PROMPT

    async def hear(self, said: object) -> None:
        await self.world.delay(self, said)
        await asyncio.sleep(0.1)
        self.world.heard[self.number].append(said)
        if fault := self.world.faults.get((self.number, self.calls)):
            raise fault

    async def grade(self) -> Rewards:
        await self.hear("grade")
        return Rewards(total=float(self.answer == 42 and self.calls == CALLS))

    async def close(self) -> None:
        self.world.closed += 1


class LossySession(LossyBase, Session):
    async def step(self, call: ToolCall) -> Observation:
        await self.hear(call)
        drifts = self.world.drift == self.calls and self.number > 0
        self.calls += 1
        self.answer = call.arguments.get("answer")
        text = f"{self.seed} {self.calls} {dict(call.arguments)}{'!' if drifts else ''}"
        return Observation(text=text, done=call.name == "submit")


class LossyTexts(LossyBase, TextSession):
    async def reply(self, text: str) -> Observation:
        await self.hear(text)
        self.calls, self.answer = CALLS, 42
        return Observation(text="heard", done=True)


def player(environment: Lossy, engine: object, pool: Pool | None, retries: int, seconds: float = 0.0) -> Player:
    return Player(
        environment,
        pool or Pool(),
        engine,  # type: ignore[arg-type]
        ToyCodec(),
        limits=Limits(seconds=seconds),
        sampling=Sampling(),
        max_retries=retries,
    )


ATTEMPT = Attempt(id="t/q0/0", task=task(), member=0, seed=7)


def play(
    environment: Lossy,
    engine: object | None = None,
    pool: Pool | None = None,
    *,
    retries: int = 3,
    seconds: float = 0.0,
) -> Trajectory:
    one = player(environment, engine or ToyChatEngine(*SCRIPT), pool, retries, seconds)
    trajectory, _ = run_timed(one.play(ATTEMPT, Seat(nullcontext)))
    assert environment.closed == len(environment.heard), "every session was closed"
    return trajectory


def told(trajectory: Trajectory) -> list[object]:
    turns = [(turn.tool_call, turn.observation) for turn in trajectory.turns]
    return [trajectory.status, trajectory.rewards, trajectory.messages, turns]


CLEAN = play(Lossy({}))


@pytest.mark.parametrize("fault", [LOST, GARBLED])
@pytest.mark.parametrize("place", range(CALLS + 1))
def test_a_session_lost_at_any_call_is_replayed_and_goes_on(place: int, fault: EpisodeError) -> None:
    environment, engine = Lossy({(0, place): fault}), ToyChatEngine(*SCRIPT)
    trajectory = play(environment, engine)
    assert told(trajectory) == told(CLEAN) and CLEAN.reward == 1.0
    assert (trajectory.recoveries, trajectory.retries, trajectory.error) == (1, 0, "")
    assert len(engine.requests) == CALLS, "nothing was generated twice"
    assert environment.heard[1][: place + 1] == environment.heard[0], "the same calls, and then the one that failed"


def test_a_session_lost_again_and_again_is_recovered_while_the_budget_lasts() -> None:
    faults: dict[tuple[int, int], EpisodeError] = {(0, 2): LOST, (1, 1): GARBLED, (2, -1): LOST}
    trajectory = play(Lossy(faults), retries=3)
    assert told(trajectory) == told(CLEAN) and (trajectory.recoveries, trajectory.retries) == (1, 0)


@pytest.mark.parametrize("drift", range(-1, 3))
def test_a_session_that_is_another_one_starts_the_attempt_again(drift: int) -> None:
    """Call 3 is lost; in the fresh session call `drift` is answered differently (-1: the opening is another)."""
    environment, engine = Lossy({(0, 3): LOST}, drift=drift), ToyChatEngine(*SCRIPT)
    trajectory = play(environment, engine)
    assert (trajectory.status, trajectory.recoveries, trajectory.retries) == (Status.COMPLETED, 0, 1)
    assert len(environment.heard) == 3 and len(engine.requests) == 4 + CALLS
    assert len(environment.heard[1]) == drift + 1, "nothing is asked after the difference"
    assert trajectory.reward == 1.0, "the attempt is whole and its own, not a mixture of two"


@pytest.mark.parametrize(("fault", "status"), [(LOST, Status.SANDBOX_ERROR), (GARBLED, Status.ENVIRONMENT_ERROR)])
@pytest.mark.parametrize("place", [-1, 0, 2, CALLS])
def test_what_always_fails_ends_as_a_fault_without_a_reward(place: int, fault: EpisodeError, status: Status) -> None:
    environment = Lossy({(session, place): fault for session in range(99)})
    trajectory = play(environment, retries=4)
    assert (trajectory.status, trajectory.rewards, trajectory.error) == (status, None, fault.message)
    assert len(environment.heard) == 5, "the first try, and recoveries and restarts together four times"


def test_without_retries_the_first_fault_is_the_last() -> None:
    environment = Lossy({(0, 2): LOST})
    assert play(environment, retries=0).status is Status.SANDBOX_ERROR and len(environment.heard) == 1


def test_a_text_session_is_recovered_too() -> None:
    environment = Lossy({(0, 0): LOST, (1, CALLS): LOST}, texts=True)
    trajectory = play(environment, ToyChatEngine(AssistantTurn(text="it is 42")))
    assert (trajectory.reward, trajectory.recoveries, trajectory.retries) == (1.0, 2, 0)
    assert environment.heard == [["it is 42"], ["it is 42", "grade"], ["it is 42", "grade"]]


def test_a_fault_of_the_engine_starts_the_attempt_again() -> None:
    class Moody(ToyChatEngine):
        async def respond(self, request: ChatRequest) -> AssistantTurn:
            turn = await super().respond(request)
            if len(self.requests) == 3:
                raise EngineError("out of memory")
            return turn

    trajectory = play(Lossy({}), Moody(*SCRIPT))
    assert told(trajectory) == told(CLEAN) and (trajectory.recoveries, trajectory.retries) == (0, 1)


class Sandboxes(Pool):
    """A pool that cuts a lease as the real one does, `wait_s` slow; it hears what each lease ended with."""

    def __init__(self, *, wait_s: float = 0.0, refusal: Exception | None = None) -> None:
        self.wait_s = wait_s
        self.refusal = refusal
        self.ended: list[BaseException | None] = []
        self._scopes: list[asyncio.Timeout] = []

    def lose(self) -> None:
        """The latest sandbox."""
        self._scopes[-1].reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def lease(self, waiting: Waiting = nullcontext) -> AsyncIterator[Sandbox | None]:
        if self._scopes:
            with waiting():
                await asyncio.sleep(self.wait_s)
            if self.refusal is not None:
                raise self.refusal
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.append(scope)
                yield ToySandbox(f"sandbox{len(self._scopes)}")
        except TimeoutError:
            lost = SandboxError("the sandbox was lost")
            self.ended.append(lost)
            raise lost from None
        except BaseException as error:
            self.ended.append(error)
            raise
        self.ended.append(None)


class Thinking(ToyChatEngine):
    """Takes a second for each turn; `during` happens in the middle of the given one."""

    def __init__(self, turn: int, during: Callable[[], None]) -> None:
        super().__init__(*SCRIPT)
        self._when = turn
        self._during = during

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        turn = await super().respond(request)
        await asyncio.sleep(0.5)
        if len(self.requests) == self._when + 1:
            self._during()
        await asyncio.sleep(0.5)
        return turn


@pytest.mark.parametrize("turn", range(CALLS))
def test_a_sandbox_lost_while_the_policy_thinks_costs_no_generation(turn: int) -> None:
    pool, environment = Sandboxes(), Lossy({})
    engine = Thinking(turn, pool.lose)
    trajectory = play(environment, engine, pool)  # type: ignore[arg-type]
    assert told(trajectory) == told(CLEAN) and (trajectory.recoveries, len(engine.requests)) == (1, CALLS)
    assert len(pool.ended) == 2 and isinstance(pool.ended[0], SandboxError) and pool.ended[1] is None
    assert len({sandbox.id for sandbox in environment.sandboxes if sandbox}) == 2


@pytest.mark.parametrize("limit_s", [0.0, 3.0])
def test_a_call_to_a_frozen_sandbox_is_cut_when_the_pool_finds_it_lost(limit_s: float) -> None:
    """Neither by the time limit of the episode, which would score the fault, nor later; and its time does not count."""
    pool = Sandboxes()

    class Freezing(Lossy):
        async def delay(self, session: LossyBase, said: object) -> None:
            if (session.number, session.calls) == (0, 2):
                asyncio.get_running_loop().call_later(15.0, pool.lose)
                await asyncio.sleep(3600.0)

    one = player(Freezing({}), ToyChatEngine(*SCRIPT), pool, 3, limit_s)  # type: ignore[arg-type]
    trajectory, seconds = run_timed(one.play(ATTEMPT, Seat(nullcontext)))
    assert told(trajectory) == told(CLEAN) and trajectory.recoveries == 1 and 15 < seconds < 20


def test_the_pool_hears_what_was_wrong_with_a_sandbox() -> None:
    pool = Sandboxes()
    play(Lossy({(0, 1): LOST, (1, 1): GARBLED}), pool=pool)  # type: ignore[arg-type]
    assert pool.ended == [LOST, GARBLED, None]


def test_a_fault_of_the_users_code_is_repeated_and_counts_against_no_sandbox() -> None:
    pool = Sandboxes()
    fault = CodeFault("The reward function mine.py raised ValueError (mine.py:3).")
    trajectory = play(Lossy({(0, CALLS): fault}), pool=pool)  # type: ignore[arg-type]
    assert told(trajectory) == told(CLEAN) and trajectory.recoveries == 1
    assert pool.ended == [None, None]


def test_recovering_does_not_count_against_the_time_of_the_episode() -> None:
    """It lasts 1.1 s of play within 2 s, and 500 s of waiting for another sandbox."""
    trajectory = play(Lossy({(0, 3): LOST}), pool=Sandboxes(wait_s=500.0), seconds=2.0)  # type: ignore[arg-type]
    assert told(trajectory) == told(CLEAN) and trajectory.recoveries == 1


def test_the_time_limit_continues_after_recovering_and_ends_in_a_verdict() -> None:
    """Five turns of 1.1 s do not fit into 4 s, with a recovery in the third as without."""
    pool = Sandboxes(wait_s=500.0)
    for faults in ({}, {(0, 2): LOST}):
        environment = Lossy(faults)  # type: ignore[arg-type]
        trajectory = play(environment, Thinking(99, pool.lose), pool, seconds=4.0)  # type: ignore[arg-type]
        assert (trajectory.status, trajectory.reward, len(trajectory.turns)) == (Status.TIMEOUT, 0.0, 3)
        assert trajectory.recoveries == len(faults)


@pytest.mark.parametrize(
    ("call", "takes_s", "status", "reward", "turns"),
    [
        (2, 30.0, Status.TIMEOUT, 0.0, 3),
        (CALLS - 1, 30.0, Status.COMPLETED, 1.0, CALLS),
        (2, 1e9, Status.TIMEOUT, 0.0, 2),
    ],
)
def test_a_time_limit_that_passes_in_a_call_cuts_after_it(
    call: int, takes_s: float, status: Status, reward: float, turns: int
) -> None:
    """What was answered late is a turn, and an answer counts; only a call that takes forever is cut."""

    class Slow(Lossy):
        async def delay(self, session: LossyBase, said: object) -> None:
            await asyncio.sleep(takes_s if session.calls == call and said != "grade" else 0.0)

    environment = Slow({})
    trajectory = play(environment, seconds=10.0)
    assert (trajectory.status, trajectory.reward, len(trajectory.turns)) == (status, reward, turns)
    assert len(environment.heard) == 1 and environment.heard[0][-1] == "grade"


def test_the_seat_is_given_up_only_while_there_is_no_sandbox() -> None:
    pool, taken = Sandboxes(wait_s=100.0), 0
    seats: list[tuple[float, int]] = []

    class Counted:
        def __enter__(self) -> None:
            self._count(1)

        def __exit__(self, *_: object) -> None:
            self._count(-1)

        def _count(self, change: int) -> None:
            nonlocal taken
            taken += change
            seats.append((round(asyncio.get_running_loop().time(), 2), taken))

    async def seated() -> None:
        with Seat(Counted) as seat:  # type: ignore[arg-type]
            one = player(Lossy({(0, 2): LOST}), ToyChatEngine(*SCRIPT), pool, 3)  # type: ignore[arg-type]
            await one.play(ATTEMPT, seat)

    run_timed(seated())
    # Three calls of 0.1 s, a pause of 0.25 s, the wait; then the replay, seated.
    assert seats == [(0.0, 1), (0.55, 0), (100.55, 1), (101.15, 0)]


def test_a_pool_that_gives_up_ends_the_run_and_not_the_episode() -> None:
    refusal = ServiceUnavailableError("12 of the latest 20 sessions failed", remedy="finqa doctor")
    with pytest.raises(ServiceUnavailableError, match="12 of the latest 20"):
        play(Lossy({(0, 2): LOST}), pool=Sandboxes(refusal=refusal))  # type: ignore[arg-type]


@pytest.mark.parametrize("moment", [0.05, 0.15, 0.3, 0.4, 50.0, 100.4, 100.8])
def test_a_cancelled_episode_leaves_neither_session_nor_lease_nor_task(moment: float) -> None:
    pool, environment = Sandboxes(wait_s=100.0), Lossy({(0, 1): LOST, (1, 3): GARBLED})

    async def cancelled() -> None:
        one = player(environment, ToyChatEngine(*SCRIPT), pool, 3)  # type: ignore[arg-type]
        playing = asyncio.create_task(one.play(ATTEMPT, Seat(nullcontext)))
        await asyncio.sleep(moment)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_timed(cancelled())
    assert environment.closed == len(environment.heard) and len(pool.ended) == len(environment.sandboxes)


class Boxed(Lossy):
    """Its sessions need their sandbox: a dead one refuses them, a frozen one never answers again."""

    def __init__(self) -> None:
        super().__init__({})
        self.frozen: set[str] = set()

    async def reach(self, sandbox: ToySandbox) -> None:
        if sandbox.id in self.frozen:
            await asyncio.sleep(3600.0)
        if sandbox.dead:
            raise SandboxError(f"{sandbox.id} is gone")

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> Any:
        assert isinstance(sandbox, ToySandbox)
        await self.reach(sandbox)
        return await super().open(task, seed=seed, sandbox=sandbox)

    async def delay(self, session: LossyBase, said: object) -> None:
        assert isinstance(session.sandbox, ToySandbox)
        await self.reach(session.sandbox)


def test_a_fifth_of_the_sandboxes_dies_and_some_freeze_and_every_episode_is_the_same() -> None:
    """The real pool: 40 episodes on 20 sandboxes, of which 4 die and 1 freezes while the policy thinks."""
    environment, provider = Boxed(), ToyProvider()
    engine = Thinking(99, lambda: None)

    async def strike(pool: SandboxPool) -> None:
        await asyncio.sleep(2.35)
        for sandbox in provider.sandboxes[:5]:
            sandbox.dead = True
        environment.frozen.add(provider.sandboxes[4].id)

    async def everything() -> list[Trajectory]:
        pool = SandboxPool(
            provider, SPEC, size=20, max_concurrent_create=5, labels={}, health_check_s=5.0, breaker_share=0.5
        )
        await pool.start()
        striking = asyncio.create_task(strike(pool))
        attempts = [Attempt(id=f"t/q{seed}/0", task=task(seed), member=0, seed=seed) for seed in range(40)]
        one = player(environment, engine, pool, 3)
        played = await play_all(one, attempts, concurrency=20, on_trajectory=lambda _: None)
        await striking
        await pool.close()
        return played

    played, seconds = run_timed(everything())
    assert [(each.status, each.reward, each.retries) for each in played] == [(Status.COMPLETED, 1.0, 0)] * 40
    assert sum(each.recoveries for each in played) == 5 and len(engine.requests) == 40 * CALLS
    assert seconds < 1.3 * 2 * CALLS * 1.1 + 5.0, "a frozen sandbox costs one health check, and no reply timeout"
    assert environment.closed == len(environment.heard) == 45
