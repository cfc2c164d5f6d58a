"""One attempt with retries, and many attempts at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace

import structlog

from finqa_cli.contracts import ChatCodec, ChatEngine, Environment, TokenEngine
from finqa_cli.errors import EpisodeError
from finqa_cli.rollout.conversation import ChatConversation, Conversation, TokenConversation
from finqa_cli.rollout.episode import Limits, TurnListener, fault_status, play_episode
from finqa_cli.rollout.pool import Pool
from finqa_cli.types import Prompt, Rewards, Sampling, Task, Trajectory, Turn

log = structlog.get_logger(__name__)

FIRST_BACKOFF_S = 0.25
LONGEST_BACKOFF_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Which task is attempted, as which member of its group, under which seed."""

    id: str
    task: Task
    member: int
    seed: int


class Seat:
    """One engine seat that its episode can leave and take again."""

    def __init__(self, take: Callable[[], AbstractContextManager[None]]) -> None:
        self._take = take
        self._taken = ExitStack()

    def __enter__(self) -> Seat:
        self._taken.enter_context(self._take())
        return self

    def __exit__(self, *_: object) -> None:
        self._taken.close()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Leaves the seat for this block."""
        self._taken.close()
        try:
            yield
        finally:
            self._taken.enter_context(self._take())


class Player:
    """Plays attempts: leases a box, opens a session of exactly the task, converses, grades; retries faults."""

    def __init__(
        self,
        environment: Environment,
        pool: Pool,
        engine: TokenEngine | ChatEngine,
        codec: ChatCodec | None,
        *,
        limits: Limits,
        sampling: Sampling,
        max_retries: int,
    ) -> None:
        self._environment = environment
        self._pool = pool
        self._engine = engine
        self._codec = codec
        self._limits = limits
        self._sampling = sampling
        self._max_retries = max_retries

    def seat(self) -> Seat:
        """A place among the engine's live episodes, not yet taken."""
        return Seat(self._engine.seat if isinstance(self._engine, TokenEngine) else nullcontext)

    async def play(self, attempt: Attempt, seat: Seat, listener: TurnListener | None = None) -> Trajectory:
        """One attempt. A fault is retried from the start in a fresh session under the same seed; the last one stays.

        The seat is given up while no box is free: an engine in lockstep would wait for this episode for ever.
        """
        for retry in range(self._max_retries + 1):
            trajectory = await self._play_once(attempt, retry, seat, listener)
            if not trajectory.status.is_fault or retry == self._max_retries:
                return trajectory
            log.info("retrying attempt", attempt=attempt.id, status=trajectory.status, reason=trajectory.error)
            await asyncio.sleep(min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2**retry))
        raise AssertionError("unreachable: max_retries is not negative")

    async def _play_once(self, attempt: Attempt, retry: int, seat: Seat, listener: TurnListener | None) -> Trajectory:
        started = time.perf_counter()
        turns: list[Turn] = []

        def record(turn: Turn) -> None:
            turns.append(turn)
            if listener is not None:
                listener(turn)

        prompt: Prompt | None = None
        rewards: Rewards | None = None
        try:
            async with self._pool.lease(seat.away) as box:
                session = await self._environment.open(attempt.task, seed=attempt.seed, sandbox=box)
                try:
                    prompt = session.prompt()
                    ending = await play_episode(session, self._conversation(attempt, prompt), self._limits, record)
                finally:
                    await session.close()
            status, rewards, error = ending.status, ending.rewards, ending.error
        except EpisodeError as fault:
            status, error = fault_status(fault), fault.message
        return Trajectory(
            id=attempt.id,
            task=attempt.task,
            member=attempt.member,
            seed=attempt.seed,
            status=status,
            turns=tuple(turns),
            messages=prompt.messages if prompt else (),
            tools=prompt.tools if prompt else (),
            rewards=rewards,
            error=error,
            retries=retry,
            seconds=time.perf_counter() - started,
        )

    def _conversation(self, attempt: Attempt, prompt: Prompt) -> Conversation:
        sampling = replace(self._sampling, seed=attempt.seed)
        if isinstance(self._engine, TokenEngine):
            assert self._codec is not None, "wiring gives every token engine a codec"
            return TokenConversation(self._engine, self._codec, prompt, key=attempt.id, sampling=sampling)
        return ChatConversation(self._engine, prompt, key=attempt.id, sampling=sampling)


async def play_all(
    player: Player,
    attempts: Sequence[Attempt],
    *,
    concurrency: int,
    on_trajectory: Callable[[Trajectory], None],
    stopping: Callable[[], bool] = lambda: False,
) -> list[Trajectory]:
    """Plays all attempts, at most `concurrency` at once, and gives the trajectories in the order of the attempts.

    Every worker keeps its engine seat from before the first dispatch until there is nothing left for it to play, so
    an engine in lockstep sees the same batches whichever episode happens to finish first. There is no barrier: a
    worker that finishes takes the next attempt at once. `on_trajectory` hears each one as it ends. When `stopping`
    turns true, running attempts finish, no new one starts, and the list is short.
    """
    queue = deque(enumerate(attempts))
    finished: dict[int, Trajectory] = {}

    async def work(seat: Seat, leave: Callable[[], None]) -> None:
        while queue and not stopping():
            index, attempt = queue.popleft()
            finished[index] = await player.play(attempt, seat)
            on_trajectory(finished[index])
        leave()

    with ExitStack() as all_seats:
        workers = []
        for _ in range(min(concurrency, len(attempts))):
            own = all_seats.enter_context(ExitStack())
            workers.append((own.enter_context(player.seat()), own.close))
        try:
            async with asyncio.TaskGroup() as group:
                for seat, leave in workers:
                    group.create_task(work(seat, leave))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the first one; the others are cancellations that it caused
    return [finished[index] for index in sorted(finished)]
