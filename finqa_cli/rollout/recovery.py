"""Recovery of a session after the loss of its sandbox or connection: its calls are replayed in a fresh session."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Literal, TypeVar, cast

import structlog

from finqa_cli.backoff import Backoff
from finqa_cli.contracts import Environment, Sandbox, Session, TextSession
from finqa_cli.errors import CodeFault, EnvironmentFault, EpisodeError, JudgeFault, SandboxError
from finqa_cli.rollout.pool import Pool, Waiting
from finqa_cli.types import AssistantTurn, Observation, Prompt, Rewards, Task, ToolCall

log = structlog.get_logger(__name__)
Result = TypeVar("Result")
AnySession = Session | TextSession

BACKOFF = Backoff(first_s=0.25, longest_s=5.0)


class RetryBudget:
    """Limit of the retries of one attempt, recoveries and restarts together; the pause before each retry grows."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._spent = 0

    async def spend(self) -> bool:
        """Take one retry and pause; return False when none is left."""
        if self._spent >= self._limit:
            return False
        self._spent += 1
        await asyncio.sleep(BACKOFF.pause_s(self._spent))
        return True


class HeldLease:
    """A lease that is held in its own task until `release`: the loss of the sandbox cuts calls to it, nothing else.

    When a sandbox is lost, the pool interrupts the block of its lease at whichever await it is. In the episode's own
    task that would also interrupt the generation, which needs no sandbox. Here it ends this object's task, and with it
    the call that runs inside `reachable`.
    """

    def __init__(self, pool: Pool, waiting: Waiting) -> None:
        loop = asyncio.get_running_loop()
        self._taken: asyncio.Future[Sandbox | None] = loop.create_future()
        self._released: asyncio.Future[None] = loop.create_future()
        self._loss: Exception | None = None
        self._call: asyncio.Timeout | None = None
        self._task = loop.create_task(self._hold(pool, waiting))

    @classmethod
    async def take(cls, pool: Pool, waiting: Waiting) -> HeldLease:
        """Lease a sandbox; `waiting` releases the engine seat while other attempts have all sandboxes.

        Raises:
            Exception: The pool raised it; see `SandboxPool.lease`.
        """
        held = cls(pool, waiting)
        try:
            await asyncio.shield(held._taken)
        except BaseException:  # the pool raised an error, or this episode is being cancelled
            await held._abandon()
            raise
        return held

    @property
    def sandbox(self) -> Sandbox | None:
        """The leased sandbox; None when the environment needs none."""
        return self._taken.result()

    @asynccontextmanager
    async def reachable(self) -> AsyncIterator[None]:
        """Run one call to the sandbox in this block.

        Raises:
            SandboxError: The sandbox was lost before the call or in the middle of it.
        """
        if self._loss is not None:
            raise self._loss
        self._call = asyncio.timeout(None)
        try:
            async with self._call:
                yield
        except TimeoutError:
            if self._loss is None:
                raise
            raise self._loss from None
        finally:
            self._call = None

    async def release(self, fault: EpisodeError | None = None) -> None:
        """Release the sandbox. If there was a fault, the pool receives it and checks the sandbox. Idempotent."""
        if not self._released.done():
            if fault is None:
                self._released.set_result(None)
            else:
                self._released.set_exception(fault)
        await asyncio.shield(self._task)

    async def _hold(self, pool: Pool, waiting: Waiting) -> None:
        try:
            async with pool.lease(waiting) as sandbox:
                self._taken.set_result(sandbox)
                await asyncio.shield(self._released)  # a cut would cancel the future, which `release` still sets
        except Exception as error:  # no caller awaits this task before `release`: pass errors to `take` or `reachable`
            if not self._taken.done():
                self._taken.set_exception(error)
            elif not self._released.done():
                self._lose(error)
            elif not isinstance(error, EpisodeError):  # the lease raises again the fault that `release` was called with
                raise

    def _lose(self, error: Exception) -> None:
        self._loss = error
        self._released.cancel()
        if self._call is not None and not self._call.expired():
            self._call.reschedule(asyncio.get_running_loop().time())

    async def _abandon(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class ReplayDiffersError(EnvironmentFault):
    """A fresh session answered the same calls differently, so the episode cannot continue in it."""


class RecoveringSession:
    """One episode's session in a leased sandbox. After a fault of either, it continues in another sandbox.

    Environments are deterministic: a fresh session of the same task and seed gives the same replies to the same calls.
    So each call is logged with the SHA-256 of its observation. When the sandbox or the connection fails, the logged
    calls are repeated in a fresh session in a new lease. If every observation is the same, the failed call is carried
    out there, and the policy does not notice the fault. A fault during the replay is retried in the same way while the
    budget lasts.

    Attributes:
        takes_text: See `Session.takes_text`; True for a `TextSession`.
        recoveries: Number of times that the episode continued in a fresh session.
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
        recovering: Callable[[], AbstractContextManager[None]],
        calling: Callable[[], AbstractContextManager[None]],
        code_failed: Callable[[CodeFault], None] = lambda fault: None,
    ) -> None:
        """Prepare a session; nothing is leased yet.

        Args:
            environment: Opens the sessions.
            pool: Leases the sandboxes.
            task: The task of the episode.
            seed: Seed of every session.
            budget: Shared with the restarts of the attempt.
            waiting: Context that is entered while other attempts have all sandboxes.
            recovering: Context that is entered during a recovery: the episode's clock stands still in it.
            calling: Context that is entered for each call to the session: the episode's clock does not cut it.
            code_failed: Called with each fault of the user's code; an exception that it raises ends the episode.
        """
        self._environment = environment
        self._pool = pool
        self._task = task
        self._seed = seed
        self._budget = budget
        self._waiting = waiting
        self._recovering = recovering
        self._calling = calling
        self._code_failed = code_failed
        self._lease: HeldLease | None = None
        self._session: AnySession | None = None
        self._prompt: Prompt | None = None
        self._log: list[tuple[Callable[[AnySession], Awaitable[Observation]], bytes]] = []
        self._takes_calls = True
        self.takes_text = False
        self.recoveries = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[RecoveringSession]:
        """Lease a sandbox and open a session for this block. At its end release both, and report a fault to the pool.

        Raises:
            EpisodeError: No sandbox can be leased, or the environment did not open a session.
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
        """Return the prompt that opens the episode."""
        assert self._prompt is not None, "opened first"
        return self._prompt

    def takes(self, turn: AssistantTurn) -> Literal["call", "text"]:
        """Return how a turn is used: without a trace of a call it is a text, if the session takes texts."""
        is_text = turn.tool_call is None and (turn.no_call or not turn.parse_error)
        return "text" if not self._takes_calls or (self.takes_text and is_text) else "call"

    async def answer(self, said: ToolCall | str, turn: AssistantTurn | None = None) -> Observation:
        """Carry out one call, or pass on one text, in a fresh session if necessary.

        Args:
            said: The call or text.
            turn: The turn that begins with it; None for a further call of a turn.

        Raises:
            SandboxError, EnvironmentFault: The session raised it, and the budget is spent.
            ReplayDiffersError: The fresh session answered the logged calls differently.
        """
        call = partial(_say, said=said, turn=turn)
        observation = await self._persist(call)
        self._log.append((call, _digest(observation)))
        return observation

    async def grade(self) -> Rewards:
        """Return the rewards. Raises the errors of `answer`."""
        return await self._persist(lambda session: session.grade())

    async def _persist(self, call: Callable[[AnySession], Awaitable[Result]]) -> Result:
        while True:
            try:
                with self._calling():
                    return await self._reach(call)
            except JudgeFault:  # the session is sound, so it only grades again
                if not await self._budget.spend():
                    raise
            except (SandboxError, EnvironmentFault) as fault:
                with self._recovering():
                    await self._recover(fault)

    async def _reach(self, call: Callable[[AnySession], Awaitable[Result]]) -> Result:
        if self._lease is None or self._session is None:
            raise SandboxError("The session was lost during a recovery.")
        async with self._lease.reachable():
            return await call(self._session)

    async def _recover(self, fault: SandboxError | EnvironmentFault) -> None:
        while True:
            await self._drop(fault)
            if not await self._budget.spend():
                raise fault
            # Log: The connection to a sandbox was lost; the calls of the episode are repeated in a new session.
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
        sandbox = self._lease.sandbox
        async with self._lease.reachable():
            self._session = await self._environment.open(self._task, seed=self._seed, sandbox=sandbox)
        self._takes_calls = isinstance(self._session, Session)
        self.takes_text = isinstance(self._session, TextSession) or self._session.takes_text
        prompt = self._session.prompt()
        if self._prompt is not None and prompt != self._prompt:
            raise ReplayDiffersError(f"Task {self._task.id!r} opened differently in a fresh session.")
        self._prompt = prompt

    async def _replay(self) -> None:
        for number, (call, digest) in enumerate(self._log):
            if _digest(await self._reach(call)) != digest:
                raise ReplayDiffersError(f"Call {number} of task {self._task.id!r} was answered differently on replay.")

    async def _drop(self, fault: EpisodeError | None) -> None:
        session, self._session = self._session, None
        lease, self._lease = self._lease, None
        try:
            if session is not None:
                await _close(session)
        finally:
            if lease is not None:
                sound = isinstance(fault, (CodeFault, JudgeFault))  # its sandbox is not the cause
                await lease.release(None if sound else fault)
        if lease is not None and isinstance(fault, CodeFault):
            self._code_failed(fault)


async def _close(session: AnySession) -> None:
    try:
        await session.close()
    except Exception as error:  # by contract it never raises; the episode is valid in any case
        # Log: An environment raised an exception at the end of a session; the episode stays valid.
        log.warning("a session could not be closed", reason=str(error))


async def _say(session: AnySession, said: ToolCall | str, turn: AssistantTurn | None) -> Observation:
    if turn is not None:
        await session.begin_turn(turn)
    return await (session.reply(said) if isinstance(said, str) else cast(Session, session).step(said))


def _digest(observation: Observation) -> bytes:
    flags = bytes((observation.done, observation.is_error))
    text = "\0".join((observation.text, *observation.images))
    return hashlib.sha256(flags + text.encode("utf-8", "surrogatepass")).digest()
