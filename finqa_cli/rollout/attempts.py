"""One attempt at a task, with recovery from faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import structlog

from finqa_cli.contracts import ChatCodec, ChatEngine, Environment, TokenEngine
from finqa_cli.errors import CodeFault, EngineError, EpisodeError, legible
from finqa_cli.extend.plugin_calls import guarded
from finqa_cli.masking import Masker
from finqa_cli.rollout.breaker import CodeBreaker, EngineBreaker
from finqa_cli.rollout.conversation import ChatConversation, Conversation, TokenConversation
from finqa_cli.rollout.episode import EpisodeClock, Limits, TurnListener, fault_status, play_episode
from finqa_cli.rollout.pool import Pool
from finqa_cli.rollout.recovery import RecoveringSession, RetryBudget
from finqa_cli.types import Prompt, Rewards, Sampling, Task, Trajectory, Turn
from finqa_cli.types.token_use import TokenUse, use_of

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt to play: its id, its task, its place in the group and its seed; see `Trajectory`."""

    id: str
    task: Task
    member: int
    seed: int


class Seat:
    """One engine seat (see `Engine.seat`) that its episode can leave and take again."""

    def __init__(self, seat: Callable[[], AbstractContextManager[None]]) -> None:
        self._seat = seat
        self._taken = ExitStack()

    def take(self) -> None:
        """Take the seat."""
        self._taken.enter_context(self._seat())

    def leave(self) -> None:
        """Release the seat. Idempotent."""
        self._taken.close()

    def __enter__(self) -> Seat:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Leave the seat for this block."""
        self.leave()
        try:
            yield
        finally:
            self.take()


class AttemptPlayer(Protocol):
    """Interface of a player that a stream uses."""

    def seat(self) -> Seat:
        """Return an engine seat that is not yet taken."""
        ...

    async def play(self, attempt: Attempt, seat: Seat) -> Trajectory:
        """Play one attempt. If all retries end in faults, the last faulted trajectory is returned."""
        ...


class Player:
    """Plays attempts: leases a sandbox, opens a session, plays the episode, grades it, and retries faults."""

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
        breaker: EngineBreaker | None = None,
        played: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> None:
        """Play with these parts; `played` is called with the trajectory of each try, also of one that is restarted."""
        self._environment = guarded(environment, "environment")
        self._played = played
        self._pool = pool
        self._engine = guarded(engine, "engine")
        self._codec = codec
        self._limits = limits
        self._sampling = sampling
        self._max_retries = max_retries
        self._breaker = breaker
        self._code_breaker = CodeBreaker()
        self._usage_failed = False

    def seat(self) -> Seat:
        """Return an engine seat that is not yet taken."""
        return Seat(self._engine.seat)

    async def play(self, attempt: Attempt, seat: Seat, listener: TurnListener | None = None) -> Trajectory:
        """Play one attempt. A lost session is recovered, or the attempt is restarted.

        There are at most `max_retries` recoveries and restarts together. After that, the faulted trajectory is
        returned. Every session has the attempt's seed. The engine seat is released while other attempts have all
        sandboxes, because an engine in lockstep would wait for it forever.

        Raises:
            ServiceUnavailableError: The breaker of the engine is open.
            FailingCodeError: A reward or an environment of the user fails each time.
        """
        budget = RetryBudget(self._max_retries)
        restarts = 0
        while True:
            trajectory = await self._play_once(attempt, restarts, budget, seat, listener)
            self._played(trajectory)
            if not trajectory.status.is_fault:
                return trajectory
            if self._breaker is not None and (dead := self._breaker.error) is not None:
                raise dead.with_traceback(None)
            if not await budget.spend():
                return trajectory
            restarts += 1
            # Log: An attempt ended in a fault and is played again.
            log.info("retrying attempt", attempt=attempt.id, status=trajectory.status, reason=trajectory.error)

    async def _play_once(
        self, attempt: Attempt, restarts: int, budget: RetryBudget, seat: Seat, listener: TurnListener | None
    ) -> Trajectory:
        started = time.perf_counter()
        turns: list[Turn] = []

        def record(turn: Turn) -> None:
            turns.append(turn)
            if self._breaker is not None:
                self._breaker.fine()
            if listener is not None:
                listener(turn)

        clock = EpisodeClock(self._limits.seconds)
        recovering = RecoveringSession(
            self._environment,
            self._pool,
            attempt.task,
            seed=attempt.seed,
            budget=budget,
            waiting=seat.away,
            recovering=clock.stopped,
            calling=clock.patient,
            code_failed=partial(self._note_code_fault, attempt),
        )
        prompt: Prompt | None = None
        rewards: Rewards | None = None
        try:
            async with recovering.opened() as session:
                prompt = session.prompt()
                conversation = self._conversation(attempt, prompt, takes_text=session.takes_text)
                ending = await play_episode(
                    session, conversation, self._limits, clock, record, lambda: self._spent(attempt.id, turns)
                )
            status, rewards, error = ending.status, ending.rewards, ending.error
            self._code_breaker.fine()
        except EpisodeError as fault:
            status, error = fault_status(fault), fault.message
            if isinstance(fault, EngineError) and self._breaker is not None:
                self._breaker.fault(fault)
        usage = self._usage(attempt.id)
        return Trajectory(
            id=attempt.id,
            task=attempt.task,
            member=attempt.member,
            seed=attempt.seed,
            status=status,
            turns=tuple(turns),
            messages=prompt.messages if prompt else (),
            tools=prompt.tools if prompt else (),
            several_calls=prompt is not None and prompt.several_calls,
            rewards=rewards,
            error=legible(Masker()(error)) if error else "",
            retries=restarts,
            recoveries=recovering.recoveries,
            seconds=time.perf_counter() - started,
            metadata={
                **({"usage": dict(usage)} if usage else {}),
                **({"judge": dict(rewards.judged)} if rewards is not None and rewards.judged else {}),
            },
        )

    def _note_code_fault(self, attempt: Attempt, fault: CodeFault) -> None:
        self._code_breaker.fault(fault, attempt.id, attempt.task.id)
        if (failing := self._code_breaker.error) is not None:
            raise failing.with_traceback(None)

    def _spent(self, episode: str, turns: Sequence[Turn]) -> TokenUse | None:
        """Return what a running episode has used, with its restarts where the engine counts them."""
        ids = ((len(turn.prompt_ids), len(turn.completion_ids)) for turn in turns)
        return use_of(ids, {"usage": self._usage(episode)})

    def _usage(self, episode: str) -> Mapping[str, Any]:
        """Return what an episode used; nothing if the engine does not report it, which is logged once."""
        if self._usage_failed:
            return {}
        try:
            return self._engine.usage(episode)
        except Exception as error:  # the episode is valid without these figures
            self._usage_failed = True
            # Log: Once, when an engine cannot report the tokens of an episode; costs are then incomplete.
            log.warning(f"The engine's usage is ignored: {error}")
            return {}

    def _conversation(self, attempt: Attempt, prompt: Prompt, *, takes_text: bool) -> Conversation:
        sampling = replace(self._sampling, seed=attempt.seed)
        if isinstance(self._engine, ChatEngine):
            return ChatConversation(
                self._engine, prompt, key=attempt.id, sampling=sampling, task=attempt.task.id, takes_text=takes_text
            )
        assert self._codec is not None, "wiring gives every token engine a codec"
        return TokenConversation(self._engine, self._codec, prompt, key=attempt.id, sampling=sampling)
