"""The boxes of a run: filled in the background, leased by the session, watched, replaced when they die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext

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
from finqa_cli.rollout.pool_protocol import NoSandboxes, Pool, PoolListener, PoolStats, Waiting
from finqa_cli.rollout.running_sandboxes import Box, Places
from finqa_cli.rollout.starts import Starts
from finqa_cli.types import ExecutionSpec, SandboxSpec

log = structlog.get_logger(__name__)

__all__ = ["NoSandboxes", "Pool", "PoolListener", "PoolStats", "SandboxPool", "Waiting"]

GOLDEN_RATIO = 0.6180339887498949


class SandboxPool:
    """Up to `size` boxes of one spec, with `sessions_per_box` places each.

    Where the spec asks for fresh boxes each hosts one session, is ended then, and another is started in its place.

    Each box has a keeper, a task that starts it, has it watched, and starts another when it is lost; so there are
    never more than `size`. See `Starts` for failed starts, `HealthChecks` for when a box is lost, `Places` for who is
    next and `Breaker` for when the pool stops altogether.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        spec: SandboxSpec,
        *,
        size: int,
        max_concurrent_create: int,
        labels: Mapping[str, str],
        sessions_per_box: int = 1,
        health_check_s: float = 0.0,
        breaker_share: float = 1.0,
        on_event: PoolListener = lambda name, fields: None,
    ) -> None:
        self._provider = provider
        self._size = size
        self._fresh = isinstance(spec, ExecutionSpec) and spec.fresh
        self._on_event = on_event
        self._places = Places(sessions_per_box)
        self._health = HealthChecks(self._places, every_s=health_check_s, size=size)
        self._breaker = Breaker(size, breaker_share)
        self._starts = Starts(
            lambda: provider.start(spec, dict(labels)),
            at_once=max_concurrent_create,
            on_failure=self._start_failed,
            on_change=self._changed,
        )
        self._boxes: set[Box] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._change = asyncio.Event()
        self._closed = self._reduced = False
        self._lost = self._replaced = self._start_failures = self._waits = 0
        self._waited_s = 0.0
        self._failed_alike: set[tuple[type[Exception], str]] = set()

    @property
    def alive(self) -> int:
        """Boxes that are running now, leased or idle."""
        return len(self._boxes)

    def stats(self) -> PoolStats:
        """The state now."""
        leased = sum(box.sessions > 0 for box in self._boxes)
        return PoolStats(
            size=self._size,
            starting=self._starts.running,
            idle=len(self._boxes) - leased,
            leased=leased,
            sessions_active=sum(box.sessions for box in self._boxes),
            waiting=self._places.waiting,
            waits=self._waits,
            waited_s=round(self._waited_s, 3),
            lost=self._lost,
            replaced=self._replaced,
            start_failures=self._start_failures,
        )

    async def start(self) -> None:
        """Begins to fill, without waiting. Idempotent.

        Raises:
            ConfigError: Several sessions are to share a box, and each is to have a fresh one.
        """
        if self._fresh and self._places.per_box > 1:
            reason = f"A fresh box hosts one session, not {self._places.per_box}."
            raise ConfigError(reason, remedy="--sessions-per-sandbox 1, or no fresh boxes")
        if not self._keepers and not self._closed:
            # Multiples of the golden ratio are spread evenly over 0 to 1, however many there are.
            self._keepers = [asyncio.create_task(self._keep(n * GOLDEN_RATIO % 1.0)) for n in range(1, self._size + 1)]
            await asyncio.sleep(0)  # each keeper has begun its start when this returns

    async def ready(self) -> None:
        """Waits until a box runs.

        Raises:
            FinqaError: None does, and there is little hope: what `lease` would raise.
        """
        while not self._boxes:
            self._raise_if_hopeless()
            await self._change.wait()

    async def settled(self) -> None:
        """Waits until every start that is running has succeeded or failed."""
        await self._starts.settled()

    @asynccontextmanager
    async def lease(self, waiting: Waiting = nullcontext) -> AsyncIterator[Sandbox | None]:
        """A place on a running box for this block, on the least loaded one; first come, first served.

        The block is cut short with a SandboxError as soon as its box is known to be lost, whatever it awaits. After a
        fault in the block the box is checked before anybody else gets it. Leave the block in the task that entered it.

        Raises:
            SandboxError: The box was lost; or none runs, none is starting and the last starts failed, of which this is
                the last error.
            ServiceUnavailableError: The breaker is open, or the pool is closed.
            Exception: No box runs and the provider refused to start one: its own error.
        """
        box = await self._take(waiting)
        try:
            async with box.held() as sandbox:
                yield sandbox
        except (SandboxError, EnvironmentFault) as fault:
            self._health.fault(box)
            self._blame(box, fault)
            raise
        else:
            box.proved = True
            box.relapses = 0
            self._breaker.fine()
        finally:
            if self._fresh and not box.lost:
                self._health.spent(box)
            self._places.release(box)

    async def close(self) -> None:
        """Cuts the leases that are out, cancels running starts and lets the provider end every box. Idempotent."""
        self._closed = True
        for box in self._boxes:
            box.lose("The pool of sandboxes was closed.")
        for keeper in self._keepers:
            keeper.cancel()
        self._changed()
        try:
            await asyncio.gather(*self._keepers, self._starts.close(), return_exceptions=True)
        finally:
            await self._provider.close()
            self._boxes.clear()

    async def _take(self, waiting: Waiting) -> Box:
        if self._starts.refusal is None and self._stopped() is None and self._hopeless() is not None:
            self._starts.hurry()  # everything died: each new lease gives it one more try
        else:
            self._raise_if_hopeless()
        box = self._places.take()
        try:
            if box is None:
                with waiting():
                    box = await self._wait()
            return box
        except BaseException:
            if box is not None:
                self._places.release(box)  # `waiting` did not let it go on
            raise

    async def _wait(self) -> Box:
        began = asyncio.get_running_loop().time()
        self._waits += 1
        try:
            return await self._places.wait()
        finally:
            self._waited_s += asyncio.get_running_loop().time() - began

    async def _keep(self, spread: float) -> None:
        """Keeps one box running, until it is cancelled or the pool is closed."""
        before: Box | None = None
        unproved = 0
        while not self._closed:
            began = asyncio.get_running_loop().time()
            # The first loss is made good at once; boxes that never last are started ever more slowly.
            sandbox = await self._starts.box(
                instead_of=before.sandbox if before is not None else None, failures=max(0, unproved - 1), spread=spread
            )
            if self._closed:
                return  # the provider did not let the start be cancelled; its close ends the box
            box = Box(sandbox)
            self._came_up(box, before, asyncio.get_running_loop().time() - began)
            reason = await self._health.watch(box, spread)
            if box.spent:
                self._boxes.discard(box)
                self._tell("sandbox_spent", {"sandbox": box.sandbox.id})
            else:
                self._died(box, reason)
            before = box
            unproved = 0 if box.proved else unproved + 1

    def _came_up(self, box: Box, before: Box | None, seconds: float) -> None:
        self._boxes.add(box)
        self._places.offer(box)
        fields: dict[str, object] = {"sandbox": box.sandbox.id, "seconds": round(seconds, 3)}
        if before is None or before.spent:
            self._breaker.fine()
            self._tell("sandbox_ready", fields)
        else:
            # No outcome for the breaker: boxes that start well and die at once, again and again, must open it.
            self._replaced += 1
            self._tell("sandbox_replaced", {**fields, "instead_of": before.sandbox.id})
        self._changed()

    def _died(self, box: Box, reason: str) -> None:
        log.info("sandbox died; starting another", sandbox=box.sandbox.id)
        self._lost += 1
        self._boxes.discard(box)
        self._tell("sandbox_lost", {"sandbox": box.sandbox.id, "reason": reason, "sessions": box.sessions})
        self._blame(box, SandboxError(reason))
        box.lose(reason)

    def _start_failed(self, error: Exception) -> None:
        remedy = str(getattr(error, "remedy", ""))
        kind = (type(error), remedy)
        if kind not in self._failed_alike:  # one reason often meets hundreds of starts, each with an id of its own
            self._failed_alike.add(kind)
            ends_the_run = not isinstance(error, EpisodeError) and not self._boxes
            tell = log.info if ends_the_run else log.warning  # it will be told as the error of the command
            tell("sandbox did not start", reason=str(error), fix=remedy or None)
        self._start_failures += 1
        self._tell("sandbox_failed", {"reason": str(error), "remedy": remedy})
        if isinstance(error, EpisodeError):
            self._count(error)

    def _blame(self, box: Box, fault: FinqaError) -> None:
        """A box counts once until a health check finds it well: what one death does to its sessions is one fault."""
        if not box.blamed:
            box.blamed = True
            self._count(fault)

    def _count(self, fault: FinqaError) -> None:
        if self._closed or self._breaker.error is not None:
            return
        self._breaker.fault(fault)
        if (opened := self._breaker.error) is not None:
            self._tell("breaker_open", {"reason": opened.message, "remedy": opened.remedy})
            self._changed()

    def _changed(self) -> None:
        """Called when boxes came up or failed to, and when the pool stops: wakes those who wait for that."""
        refusal = self._starts.refusal
        if (reason := self._hopeless()) is not None:
            self._places.dismiss(reason)
        elif refusal is not None and self._boxes and not self._starts.running and not self._reduced:
            self._reduced = True
            fields = {"reason": str(refusal), "remedy": getattr(refusal, "remedy", "")}
            log.warning("going on with fewer sandboxes", alive=self.alive, size=self._size, **fields)
            self._tell("pool_reduced", {"alive": self.alive, "size": self._size, **fields})
        self._change.set()
        self._change = asyncio.Event()

    def _stopped(self) -> Exception | None:
        """Why the pool gives no leases any more; None while it does."""
        if self._closed:
            return ServiceUnavailableError("The pool of sandboxes is closed.")
        return self._breaker.error

    def _hopeless(self) -> Exception | None:
        """What to tell those who wait; None while a box may still come."""
        if self._boxes or self._starts.running:
            return self._stopped()
        return self._stopped() or self._starts.failure

    def _raise_if_hopeless(self) -> None:
        if (reason := self._hopeless()) is not None:
            raise reason.with_traceback(None)

    def _tell(self, name: str, fields: Mapping[str, object]) -> None:
        try:
            self._on_event(name, fields)
        except Exception as error:  # the boxes must be kept whatever becomes of those who look on
            log.warning("a listener of the sandbox pool failed", event_name=name, reason=repr(error))
