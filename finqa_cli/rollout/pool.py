"""The sandboxes of a run: started in the background, leased to sessions, checked, and replaced when they die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

import structlog

from finqa_cli.contracts import Sandbox, SandboxProvider
from finqa_cli.errors import (
    ConfigError,
    EnvironmentFault,
    EpisodeError,
    FinqaError,
    SandboxError,
    ServiceUnavailableError,
)
from finqa_cli.rollout.breaker import Breaker
from finqa_cli.rollout.health import HealthChecks
from finqa_cli.rollout.pooled_sandboxes import RUNNING, Places, PooledSandbox, SandboxState, event_of
from finqa_cli.rollout.starts import Starts
from finqa_cli.types import ExecutionSpec, SandboxSpec

log = structlog.get_logger(__name__)


Waiting = Callable[[], AbstractContextManager[None]]
"""Context in which an attempt waits for a sandbox that another attempt uses: it releases its engine seat meanwhile."""

PoolListener = Callable[[str, Mapping[str, object]], object]
"""Receives the name and the fields of each event. Fields are small and without secrets. Called in the event loop.

- `sandbox_ready`: sandbox, seconds since its start was requested
- `sandbox_failed`: reason, remedy
- `sandbox_lost`: sandbox, reason, number of sessions that were cut
- `sandbox_replaced`: sandbox, instead_of, seconds since the other one was lost
- `sandbox_spent`: sandbox, if each session needs a fresh one and its only session has ended
- `pool_reduced`: alive, size, reason, remedy
- `breaker_open`: reason, remedy
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """Figures of a pool at one moment. Sandboxes that are not starting, idle or leased pause before their next start.

    Attributes:
        size: Sandboxes that the pool tries to keep running.
        starting: Sandboxes whose start is in progress or waits for its turn.
        idle: Running sandboxes without a session.
        leased: Running sandboxes with at least one session.
        sessions_active: Sessions on running sandboxes.
        waiting: Leases that wait for a place.
        waits: Leases that had to wait, in all.
        waited_s: Seconds that leases have waited in all, without those that still wait.
        lost: Sandboxes that ran and died, in all.
        replaced: Lost sandboxes in whose place another one has started.
        start_failures: Starts that failed, in all.
    """

    size: int = 0
    starting: int = 0
    idle: int = 0
    leased: int = 0
    sessions_active: int = 0
    waiting: int = 0
    waits: int = 0
    waited_s: float = 0.0
    lost: int = 0
    replaced: int = 0
    start_failures: int = 0

    @property
    def alive(self) -> int:
        """Number of running sandboxes."""
        return self.idle + self.leased


class Pool:
    """Source of the sandboxes of attempts. The base class leases None, for environments without sandboxes."""

    @asynccontextmanager
    async def lease(self, waiting: Waiting = nullcontext) -> AsyncIterator[Sandbox | None]:
        """Yield a sandbox with a place for one session; None for environments that need no sandbox."""
        yield None

    async def start(self) -> None:
        """Begin to start sandboxes, without waiting."""

    async def ready(self) -> None:
        """Wait until a sandbox can be leased; if none can, raise what `lease` would raise."""

    async def settled(self) -> None:
        """Wait until every start in progress has succeeded or failed."""

    def stats(self) -> PoolStats:
        """Return the present figures of the pool."""
        return PoolStats()

    async def close(self) -> None:
        """End every sandbox."""


__all__ = ["Pool", "PoolListener", "PoolStats", "SandboxPool", "Waiting"]

GOLDEN_RATIO = 0.6180339887498949
SEATED_WAIT_S = 120.0
"""Seconds for which an attempt keeps its engine seat while a lost sandbox is replaced. After that it releases the seat,
so that other episodes continue without it."""


class SandboxPool(Pool):
    """Up to `size` sandboxes of one spec, with `sessions_per_sandbox` places each.

    If the spec needs fresh sandboxes, each hosts one session, is then stopped, and another one is started in its place.

    A task per sandbox starts it, watches its health, and starts another one when it is lost; so there are never more
    than `size`. Only `move` changes the state of a sandbox; see `pooled_sandboxes` for the transitions. See `Starts`
    for failed starts, `HealthChecks` for when a sandbox is lost, `Places` for the order of sessions and `Breaker` for
    when the whole pool stops.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        spec: SandboxSpec,
        *,
        size: int,
        max_concurrent_create: int,
        labels: Mapping[str, str],
        sessions_per_sandbox: int = 1,
        health_check_s: float = 0.0,
        breaker_share: float = 1.0,
        breaker: Breaker | None = None,
        on_event: PoolListener = lambda name, fields: None,
    ) -> None:
        self._provider = provider
        self._size = size
        self._fresh = isinstance(spec, ExecutionSpec) and spec.fresh
        self._on_event = on_event
        self._places = Places(sessions_per_sandbox)
        self._health = HealthChecks(self.move, every_s=health_check_s, size=size)
        self._breaker = breaker or Breaker(size, breaker_share)
        self._starts = Starts(
            lambda: provider.start(spec, dict(labels)),
            at_once=max_concurrent_create,
            on_failure=self._start_failed,
            on_change=self._changed,
        )
        self._sandboxes: set[PooledSandbox] = set()
        self._workers: list[asyncio.Task[None]] = []
        self._change = asyncio.Event()
        self._closed = self._reduced = False
        self._lost = self._replaced = self._start_failures = self._waits = 0
        self._waited_s = 0.0
        self._reported_failures: set[tuple[type[Exception], str]] = set()
        self._struck: set[str] = set()  # server processes whose fault was counted, without a passed check since

    @property
    def alive(self) -> int:
        """Number of sandboxes that run now, leased or idle."""
        return len(self._sandboxes)

    def stats(self) -> PoolStats:
        """Return the present figures of the pool."""
        leased = sum(sandbox.sessions > 0 for sandbox in self._sandboxes)
        return PoolStats(
            size=self._size,
            starting=self._starts.running,
            idle=len(self._sandboxes) - leased,
            leased=leased,
            sessions_active=sum(sandbox.sessions for sandbox in self._sandboxes),
            waiting=self._places.waiting,
            waits=self._waits,
            waited_s=round(self._waited_s, 3),
            lost=self._lost,
            replaced=self._replaced,
            start_failures=self._start_failures,
        )

    async def start(self) -> None:
        """Begin to start sandboxes, without waiting. Idempotent.

        Raises:
            ConfigError: The settings let sessions share a sandbox, but each session needs a fresh one.
        """
        if self._fresh and self._places.per_sandbox > 1:
            reason = f"A fresh sandbox hosts one session, not {self._places.per_sandbox}."
            raise ConfigError(reason, remedy="--sessions-per-sandbox 1, or no fresh sandboxes")
        if not self._workers and not self._closed:
            # Multiples of the golden ratio are spread evenly over 0 to 1, however many there are.
            self._workers = [asyncio.create_task(self._work(n * GOLDEN_RATIO % 1.0)) for n in range(1, self._size + 1)]
            await asyncio.sleep(0)  # lets each task begin its start before this method returns

    async def ready(self) -> None:
        """Wait until a sandbox runs.

        Raises:
            Exception: No sandbox runs, and the last starts failed: the error that `lease` would raise.
        """
        while not self._sandboxes:
            self._raise_if_hopeless()
            await self._change.wait()

    async def settled(self) -> None:
        """See `Pool.settled`."""
        await self._starts.settled()

    @asynccontextmanager
    async def lease(self, waiting: Waiting = nullcontext) -> AsyncIterator[Sandbox | None]:
        """Yield the least loaded sandbox, with a place on it for this block; first come, first served.

        The block is interrupted with a SandboxError as soon as its sandbox is known to be lost, at whichever await it
        is. After a fault in the block, the sandbox is checked before it gets a new session. The task that entered the
        block must leave it.

        Raises:
            SandboxError: The sandbox was lost. Or no sandbox runs or is starting and the last starts failed; this is
                then the last of their errors.
            ServiceUnavailableError: The breaker is open, or the pool is closed.
            Exception: No sandbox runs, and the provider refused to start one with this error.
        """
        sandbox = await self._take(waiting)
        try:
            async with sandbox.hold() as held:
                yield held
        except (SandboxError, EnvironmentFault) as fault:
            self._note_fault(sandbox, fault)
            raise
        else:
            sandbox.proved = True
            sandbox.relapses = 0
            self._breaker.fine()
        finally:
            if self._fresh and sandbox.state in RUNNING:
                self.move(sandbox, SandboxState.SPENT)
                sandbox.check_now.set()  # wakes its health check, which then ends
            self._places.release(sandbox)

    async def close(self) -> None:
        """Cut the leases, cancel running starts and let the provider end every sandbox. Idempotent."""
        self._closed = True
        for sandbox in self._sandboxes:
            if sandbox.state is not SandboxState.CLOSED:
                self.move(sandbox, SandboxState.CLOSED)
                sandbox.cut("The pool of sandboxes was closed.")
        for worker in self._workers:
            worker.cancel()
        self._changed()
        try:
            await asyncio.gather(*self._workers, self._starts.close(), return_exceptions=True)
        finally:
            await self._provider.close()
            self._sandboxes.clear()

    def move(
        self,
        sandbox: PooledSandbox,
        to: SandboxState,
        fields: Mapping[str, object] | None = None,
        *,
        replaces_lost: bool = False,
    ) -> None:
        """Change the state of a sandbox, offer or withdraw its places, and emit the event of the transition.

        Args:
            sandbox: A sandbox of this pool.
            to: Its next state.
            fields: Fields of the event in addition to the sandbox's id.
            replaces_lost: It becomes READY in place of one that was lost.

        Raises:
            IllegalTransitionError: The table of `pooled_sandboxes` has no such transition.
        """
        event = event_of(sandbox.state, to, replaces_lost=replaces_lost)
        sandbox.state = to
        if to is SandboxState.READY:
            self._struck.discard(sandbox.sandbox.server_id)
        self._places.update(sandbox)
        if event is not None:
            named = {} if to is SandboxState.FAILED else {"sandbox": sandbox.sandbox.id}
            self._emit(event, {**named, **(fields or {})})

    async def _take(self, waiting: Waiting) -> PooledSandbox:
        if self._starts.refusal is None and self._stopped() is None and self._hopeless() is not None:
            self._starts.hurry()  # all sandboxes died: each new lease ends the pause before one more start
        else:
            self._raise_if_hopeless()
        sandbox = self._places.take()
        try:
            if sandbox is None and self._has_places_for_all():
                sandbox = await self._wait(SEATED_WAIT_S)
            if sandbox is None:
                with waiting():
                    sandbox = await self._wait(None)
            assert sandbox is not None, "it was waited for without a limit"
            return sandbox
        except BaseException:
            if sandbox is not None:
                self._places.release(sandbox)  # leaving `waiting` raised
            raise

    def _has_places_for_all(self) -> bool:
        """Whether one more session will get a place without another session ending.

        An engine in lockstep may then wait for that session: its batches are composed as if no sandbox had died.
        """
        sandboxes = self._size if self._starts.failure is None else len(self._sandboxes)
        sessions = sum(sandbox.sessions for sandbox in self._sandboxes)
        return sessions + self._places.waiting < sandboxes * self._places.per_sandbox

    async def _wait(self, patience_s: float | None) -> PooledSandbox | None:
        """Wait for a place for at most `patience_s` seconds (None: no limit); return None if none became free."""
        began = asyncio.get_running_loop().time()
        self._waits += 1
        limit = asyncio.timeout(patience_s)
        try:
            async with limit:
                return await self._places.wait()
        except TimeoutError:
            if not limit.expired():
                raise  # not this timeout, but the reason why there is no sandbox
            return None
        finally:
            self._waited_s += asyncio.get_running_loop().time() - began

    async def _work(self, spread: float) -> None:
        """Keep one sandbox running, until cancelled or the pool is closed."""
        before: PooledSandbox | None = None
        unproved = 0
        while not self._closed:
            began = asyncio.get_running_loop().time()
            # The first lost sandbox is replaced at once. If sandboxes are lost again and again, the pauses grow.
            sandbox = await self._starts.start(instead_of=before, failures=max(0, unproved - 1), spread=spread)
            if self._closed:
                self.move(sandbox, SandboxState.CLOSED)
                return  # the provider did not let the start be cancelled; its close ends the sandbox
            self._started(sandbox, before, asyncio.get_running_loop().time() - began)
            reason = await self._health.watch(sandbox, spread)
            self._sandboxes.discard(sandbox)
            if sandbox.state is not SandboxState.SPENT:
                self._lose(sandbox, reason)
            before = sandbox
            unproved = 0 if sandbox.proved else unproved + 1

    def _started(self, sandbox: PooledSandbox, before: PooledSandbox | None, seconds: float) -> None:
        self._sandboxes.add(sandbox)
        fields: dict[str, object] = {"seconds": round(seconds, 3)}
        if before is None or before.state is not SandboxState.LOST:
            self._breaker.fine()
            self.move(sandbox, SandboxState.READY, fields)
        else:
            # Not counted as a success: sandboxes that start and die at once, again and again, must open the breaker.
            self._replaced += 1
            fields["instead_of"] = before.sandbox.id
            self.move(sandbox, SandboxState.READY, fields, replaces_lost=True)
        self._changed()

    def _lose(self, sandbox: PooledSandbox, reason: str) -> None:
        # Log: With the event `sandbox_lost`.
        log.info("sandbox died; starting another", sandbox=sandbox.sandbox.id)
        self._lost += 1
        self.move(sandbox, SandboxState.LOST, {"reason": reason, "sessions": sandbox.sessions})
        self._strike(sandbox, SandboxError(reason))
        sandbox.cut(reason)

    def _note_fault(self, sandbox: PooledSandbox, fault: FinqaError) -> None:
        """Request a check of a sandbox on which a session failed."""
        if sandbox.state in (SandboxState.READY, SandboxState.SUSPECT):
            self.move(sandbox, SandboxState.FAULTED)
            self._strike(sandbox, fault)
        sandbox.check_now.set()

    def _strike(self, sandbox: PooledSandbox, fault: FinqaError) -> None:
        """Count a fault of the server process of a sandbox, at most once until a sandbox of it passes a check.

        The death of a process is one fault, however many sessions and sandboxes it affects.
        """
        process = sandbox.sandbox.server_id
        if process not in self._struck:
            self._struck.add(process)
            self._count(fault)

    def _start_failed(self, sandbox: PooledSandbox, error: Exception, is_new: bool) -> None:
        remedy = str(getattr(error, "remedy", ""))
        kind = (type(error), remedy)
        if kind not in self._reported_failures:  # one cause often fails hundreds of starts, with ids in the messages
            self._reported_failures.add(kind)
            ends_the_run = not isinstance(error, EpisodeError) and not self._sandboxes
            report = log.info if ends_the_run else log.warning  # an error that ends the run is reported by the command
            # Log: Once for each cause, with the event `sandbox_failed`. If it ends the run, the command reports it too.
            report("sandbox did not start", reason=str(error), fix=remedy or None)
        self._start_failures += 1
        self.move(sandbox, SandboxState.FAILED, {"reason": str(error), "remedy": remedy})
        if isinstance(error, EpisodeError) and is_new:
            self._count(error)

    def _count(self, fault: FinqaError) -> None:
        if self._closed or self._breaker.error is not None:
            return
        self._breaker.fault(fault)
        if (opened := self._breaker.error) is not None:
            self._emit("breaker_open", {"reason": opened.message, "remedy": opened.remedy})
            self._changed()

    def _changed(self) -> None:
        """Wake everything that waits for a sandbox, after a start succeeded or failed or the pool stopped."""
        refusal = self._starts.refusal
        if (reason := self._hopeless()) is not None:
            self._places.dismiss(reason)
        elif refusal is not None and self._sandboxes and not self._starts.running and not self._reduced:
            self._reduced = True
            fields = {"reason": str(refusal), "remedy": getattr(refusal, "remedy", "")}
            # Log: With the event `pool_reduced`.
            log.warning("continuing with fewer sandboxes", alive=self.alive, size=self._size, **fields)
            self._emit("pool_reduced", {"alive": self.alive, "size": self._size, **fields})
        self._change.set()
        self._change = asyncio.Event()

    def _stopped(self) -> Exception | None:
        """Return why the pool no longer leases sandboxes; None while it does."""
        if self._closed:
            return ServiceUnavailableError("The pool of sandboxes is closed.")
        return self._breaker.error

    def _hopeless(self) -> Exception | None:
        """Return why no sandbox can be expected; None while one can."""
        if self._sandboxes or self._starts.running:
            return self._stopped()
        return self._stopped() or self._starts.failure

    def _raise_if_hopeless(self) -> None:
        if (reason := self._hopeless()) is not None:
            raise reason.with_traceback(None)

    def _emit(self, name: str, fields: Mapping[str, object]) -> None:
        try:
            self._on_event(name, fields)
        except Exception as error:  # the pool must keep working when a listener does not
            # Log: The event could not be recorded, for example because the disk is full.
            log.warning("a listener of the sandbox pool failed", event_name=name, reason=repr(error))
