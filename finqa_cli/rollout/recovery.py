"""A session that survives the loss of its box or connection: its calls are replayed in a fresh one, and compared."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar, cast

import structlog

from finqa_cli.contracts import Environment, Session, TextSession
from finqa_cli.errors import EnvironmentFault, EpisodeError, SandboxError
from finqa_cli.rollout.held_lease import HeldLease
from finqa_cli.rollout.pool import Pool, Waiting
from finqa_cli.types import Observation, Prompt, Rewards, Task, ToolCall

log = structlog.get_logger(__name__)
Result = TypeVar("Result")
AnySession = Session | TextSession

FIRST_BACKOFF_S = 0.25
LONGEST_BACKOFF_S = 5.0


class RetryBudget:
    """How often the faults of one attempt are made good, by recovery or restart; each time after a longer pause."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._spent = 0

    async def spend(self) -> bool:
        """Takes one retry and pauses; False when none is left."""
        if self._spent >= self._limit:
            return False
        self._spent += 1
        await asyncio.sleep(min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (self._spent - 1)))
        return True


class ReplayDiffersError(EnvironmentFault):
    """A fresh session answered the same calls differently, so the episode cannot go on in it."""


class RecoveringSession:
    """One episode's session in a leased box, and after a fault of either another one.

    Environments are deterministic: a fresh session of the same task and seed answers the same calls alike. So each
    call is logged with the SHA-256 of its observation. When box or connection fails, a fresh session in a fresh lease
    hears the logged calls again, and when every observation is the same, the failed call is carried out there and the
    policy notices nothing. A fault while replaying is retried in the same way while the budget lasts.

    Attributes:
        takes_text: Whether it is told texts instead of tool calls; known once it is opened.
        recoveries: How often the episode went on in a fresh session.
    """

    def __init__(
        self,
        environment: Environment,
        pool: Pool,
        task: Task,
        *,
        seed: int,
        budget: RetryBudget,
        waiting: Waiting,
        mending: Callable[[], AbstractContextManager[None]],
        calling: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Nothing is leased yet.

        Args:
            environment: Opens the sessions.
            pool: Leases the boxes.
            task: What is played.
            seed: Of every session.
            budget: Shared with the restarts of the attempt.
            waiting: Entered while no box is free.
            mending: Entered while a fault is being made good: the episode's clock stands still there.
            calling: Entered for each call to the session: the episode's clock does not cut it.
        """
        self._environment = environment
        self._pool = pool
        self._task = task
        self._seed = seed
        self._budget = budget
        self._waiting = waiting
        self._mending = mending
        self._calling = calling
        self._lease: HeldLease | None = None
        self._session: AnySession | None = None
        self._prompt: Prompt | None = None
        self._log: list[tuple[ToolCall | str, str]] = []
        self.takes_text = False
        self.recoveries = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[RecoveringSession]:
        """Leases and opens; frees everything at the end of the block, a box that failed with its fault.

        Raises:
            EpisodeError: There is no box, or the environment did not open a session.
        """
        try:
            await self._open()
            yield self
        except (SandboxError, EnvironmentFault) as fault:
            await self._drop(fault)
            raise
        finally:
            await self._drop(None)

    def prompt(self) -> Prompt:
        """How the episode opens."""
        assert self._prompt is not None, "opened first"
        return self._prompt

    async def answer(self, said: ToolCall | str) -> Observation:
        """Carries out one call, or takes one text, if need be in a fresh session.

        Raises:
            SandboxError, EnvironmentFault: As `Session.step`, once the budget is spent.
            ReplayDiffersError: The fresh session is not the old one's equal.
        """
        observation = await self._persist(_telling(said))
        self._log.append((said, _digest(observation)))
        return observation

    async def grade(self) -> Rewards:
        """The verdict; raises as `answer`."""
        return await self._persist(lambda session: session.grade())

    async def _persist(self, call: Callable[[AnySession], Awaitable[Result]]) -> Result:
        while True:
            try:
                with self._calling():
                    return await self._reach(call)
            except (SandboxError, EnvironmentFault) as fault:
                with self._mending():
                    await self._recover(fault)

    async def _reach(self, call: Callable[[AnySession], Awaitable[Result]]) -> Result:
        if self._lease is None or self._session is None:
            raise SandboxError("The session was given up in the middle of a recovery.")
        async with self._lease.reachable():
            return await call(self._session)

    async def _recover(self, fault: SandboxError | EnvironmentFault) -> None:
        while True:
            await self._drop(fault)
            if not await self._budget.spend():
                raise fault
            log.info("recovering an episode", task=self._task.id, calls=len(self._log), reason=fault.message)
            try:
                await self._open()
                await self._replay()
            except ReplayDiffersError:
                raise
            except (SandboxError, EnvironmentFault) as another:
                fault = another
            else:
                self.recoveries += 1
                return

    async def _open(self) -> None:
        self._lease = await HeldLease.take(self._pool, self._waiting)
        async with self._lease.reachable():
            self._session = await self._environment.open(self._task, seed=self._seed, sandbox=self._lease.box)
        self.takes_text = isinstance(self._session, TextSession)
        prompt = self._session.prompt()
        if self._prompt is not None and prompt != self._prompt:
            raise ReplayDiffersError(f"Task {self._task.id!r} opened differently in a fresh session.")
        self._prompt = prompt

    async def _replay(self) -> None:
        for number, (said, digest) in enumerate(self._log):
            if _digest(await self._reach(_telling(said))) != digest:
                raise ReplayDiffersError(f"Call {number} of task {self._task.id!r} was answered differently on replay.")

    async def _drop(self, fault: EpisodeError | None) -> None:
        session, self._session = self._session, None
        lease, self._lease = self._lease, None
        try:
            if session is not None:
                await session.close()
        finally:
            if lease is not None:
                await lease.release(fault)


def _telling(said: ToolCall | str) -> Callable[[AnySession], Awaitable[Observation]]:
    def tell(session: AnySession) -> Awaitable[Observation]:
        if isinstance(said, str):
            return cast(TextSession, session).reply(said)
        return cast(Session, session).step(said)

    return tell


def _digest(observation: Observation) -> str:
    facts = json.dumps([observation.text, observation.done, observation.is_error])
    return hashlib.sha256(facts.encode()).hexdigest()
