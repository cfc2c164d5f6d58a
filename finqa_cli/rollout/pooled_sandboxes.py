"""Sandboxes of the pool: their states and transitions, the sessions on them, and their free places."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from typing import Literal, NotRequired

from finqa_cli.contracts import Sandbox
from finqa_cli.errors import FinqaError, SandboxError
from finqa_cli.types.run_events import RunEvent


class SandboxEvent(RunEvent):
    """An event of the sandboxes."""

    worker: NotRequired[int]
    """Number of the rollout worker; absent without rollout workers."""


class SandboxReady(SandboxEvent):
    """A sandbox started."""

    event: Literal["sandbox_ready"]
    sandbox: str
    """Id of the sandbox."""
    seconds: float
    """Seconds since its start was requested."""


class SandboxFailed(SandboxEvent):
    """A sandbox did not start."""

    event: Literal["sandbox_failed"]
    reason: str
    """The error."""
    remedy: str
    """A command that fixes it; may be empty."""


class SandboxLost(SandboxEvent):
    """A running sandbox died, or failed every session. Its sessions continue on other sandboxes."""

    event: Literal["sandbox_lost"]
    sandbox: str
    """Id of the sandbox."""
    reason: str
    """The error."""
    sessions: int
    """Number of sessions that were cut."""


class SandboxReplaced(SandboxEvent):
    """A sandbox started in place of a lost one."""

    event: Literal["sandbox_replaced"]
    sandbox: str
    """Id of the new sandbox."""
    instead_of: str
    """Id of the lost sandbox."""
    seconds: float
    """Seconds since the other one was lost."""


class SandboxSpent(SandboxEvent):
    """The only session of a sandbox ended, where each session needs a fresh one."""

    event: Literal["sandbox_spent"]
    sandbox: str
    """Id of the sandbox."""


class PoolReduced(SandboxEvent):
    """No further sandbox can be started, so the run continues with those that run."""

    event: Literal["pool_reduced"]
    alive: int
    """Running sandboxes."""
    size: int
    """Wanted sandboxes."""
    reason: str
    """The error."""
    remedy: str
    """A command that fixes it; may be empty."""


class BreakerOpen(SandboxEvent):
    """Too many faults followed each other, so the run ends."""

    event: Literal["breaker_open"]
    reason: str
    """The last fault."""
    remedy: str
    """A command that fixes it; may be empty."""


class SandboxState(Enum):
    """State of one sandbox, from the call that starts it until the pool stops using it.

    Only a READY sandbox gets new sessions. Its running sessions continue in SUSPECT and FAULTED, and are cut in LOST
    and CLOSED. The number of sessions is separate from the state, see `PooledSandbox.sessions`.
    """

    STARTING = "starting"
    """The provider is starting it."""
    READY = "ready"
    """It runs, and has no open fault."""
    SUSPECT = "suspect"
    """It did not answer a health check, or a neighbour did not while this one was idle. The next check decides."""
    FAULTED = "faulted"
    """A session on it ended in a fault, which the breaker has counted. The next check decides."""
    SPENT = "spent"
    """Its only session ended, where each session needs a fresh sandbox."""
    LOST = "lost"
    """It died, or it fails every session."""
    FAILED = "failed"
    """It did not start."""
    CLOSED = "closed"
    """The pool was closed while it ran."""


TRANSITIONS: Mapping[SandboxState, frozenset[SandboxState]] = {
    SandboxState.STARTING: frozenset({SandboxState.READY, SandboxState.FAILED, SandboxState.CLOSED}),
    SandboxState.READY: frozenset(
        {SandboxState.SUSPECT, SandboxState.FAULTED, SandboxState.SPENT, SandboxState.CLOSED}
    ),
    SandboxState.SUSPECT: frozenset(
        {SandboxState.READY, SandboxState.FAULTED, SandboxState.SPENT, SandboxState.LOST, SandboxState.CLOSED}
    ),
    SandboxState.FAULTED: frozenset({SandboxState.READY, SandboxState.SPENT, SandboxState.LOST, SandboxState.CLOSED}),
    SandboxState.SPENT: frozenset({SandboxState.CLOSED}),
    SandboxState.LOST: frozenset(),
    SandboxState.FAILED: frozenset(),
    SandboxState.CLOSED: frozenset(),
}
"""The states that may follow each state."""

RUNNING = frozenset({SandboxState.READY, SandboxState.SUSPECT, SandboxState.FAULTED})
"""The states in which sessions run."""

EVENTS: Mapping[tuple[SandboxState, SandboxState], str] = {
    (SandboxState.STARTING, SandboxState.READY): "sandbox_ready",
    (SandboxState.STARTING, SandboxState.FAILED): "sandbox_failed",
    (SandboxState.READY, SandboxState.SPENT): "sandbox_spent",
    (SandboxState.SUSPECT, SandboxState.SPENT): "sandbox_spent",
    (SandboxState.FAULTED, SandboxState.SPENT): "sandbox_spent",
    (SandboxState.SUSPECT, SandboxState.LOST): "sandbox_lost",
    (SandboxState.FAULTED, SandboxState.LOST): "sandbox_lost",
}
"""Transition -> the event that listeners of the pool receive. If a READY sandbox replaces a lost one, its event is
`sandbox_replaced`."""


class IllegalTransitionError(FinqaError):
    """The pool tried a transition that `TRANSITIONS` does not allow: a defect of the pool."""


def event_of(state: SandboxState, to: SandboxState, *, replaces_lost: bool = False) -> str | None:
    """Return the event of a transition; None if it has no event.

    Raises:
        IllegalTransitionError: The table has no such transition.
    """
    if to not in TRANSITIONS[state]:
        raise IllegalTransitionError(f"A sandbox of the pool cannot change from {state.value} to {to.value}.")
    event = EVENTS.get((state, to))
    return "sandbox_replaced" if event == "sandbox_ready" and replaces_lost else event


class PooledSandbox:
    """A sandbox of the pool, its state and the sessions on it. `SandboxPool.move` alone changes the state.

    Attributes:
        state: Its state.
        sandbox: The provider's object, set when the sandbox has started.
        sessions: Number of taken places on it.
        proved: True after a session on it ended without a fault.
        relapses: Faults in a row after which it passed a check, with no other session on it.
        check_now: Set to request a check.
        checked_at: Time at which its last check ended, on the event loop's clock in seconds; minus infinity before the
            first.
    """

    __slots__ = (
        "_cuts",
        "_reason",
        "check_now",
        "checked_at",
        "proved",
        "relapses",
        "sandbox",
        "sessions",
        "state",
    )

    sandbox: Sandbox

    def __init__(self) -> None:
        self.state = SandboxState.STARTING
        self.sessions = 0
        self.proved = False
        self.relapses = 0
        self.check_now = asyncio.Event()
        self.checked_at = float("-inf")
        self._reason = ""
        self._cuts: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Sandbox]:
        """Yield the provider's sandbox; `cut` interrupts the block at whichever await it is.

        Raises:
            SandboxError: The sandbox was lost, before the block or in it.
        """
        if self._reason:
            raise SandboxError(self._reason)
        # A timeout without a deadline can cancel this block without cancelling the task around it. A cancellation of
        # the task from outside still has priority.
        try:
            async with asyncio.timeout(None) as cut:
                self._cuts.add(cut)
                try:
                    yield self.sandbox
                finally:
                    self._cuts.discard(cut)
        except TimeoutError:
            if cut.expired():
                raise SandboxError(self._reason) from None
            raise

    def cut(self, reason: str) -> None:
        """End every `hold` block, present and future, with a SandboxError of this reason."""
        self._reason = reason
        now = asyncio.get_running_loop().time()
        for cut in self._cuts:
            cut.reschedule(now)
        self._cuts.clear()


class Places:
    """Places for `per_sandbox` sessions on each READY sandbox: least loaded first, and first come, first served.

    Taking and releasing cost the same for any number of sandboxes. While a session waits, no place is free.
    """

    def __init__(self, per_sandbox: int) -> None:
        self._by_load: list[OrderedDict[PooledSandbox, None]] = [OrderedDict() for _ in range(per_sandbox)]
        self._queue: OrderedDict[asyncio.Future[PooledSandbox | Exception], None] = OrderedDict()

    @property
    def per_sandbox(self) -> int:
        """Places on each sandbox."""
        return len(self._by_load)

    @property
    def waiting(self) -> int:
        """Number of sessions that wait for a place."""
        return len(self._queue)

    def update(self, sandbox: PooledSandbox) -> None:
        """Offer the free places of a sandbox when it is READY, else withdraw them; sessions on it stay. Idempotent."""
        if sandbox.state is SandboxState.READY:
            self._list(sandbox)
            self._serve()
        else:
            self._unlist(sandbox)

    def take(self) -> PooledSandbox | None:
        """Take a place on the least loaded sandbox; None when none is free."""
        for sandboxes in self._by_load:
            if sandboxes:
                sandbox, _ = sandboxes.popitem(last=False)
                sandbox.sessions += 1
                self._list(sandbox)
                return sandbox
        return None

    def release(self, sandbox: PooledSandbox) -> None:
        """Free a place."""
        self._unlist(sandbox)
        sandbox.sessions -= 1
        self._list(sandbox)
        self._serve()

    async def wait(self) -> PooledSandbox:
        """Wait in the queue for a place, unless one is free.

        Raises:
            Exception: The reason that `dismiss` was called with.
        """
        if free := self.take():  # such as one that a session got in the moment in which its own wait ended
            return free
        turn: asyncio.Future[PooledSandbox | Exception] = asyncio.get_running_loop().create_future()
        self._queue[turn] = None
        try:
            outcome = await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and isinstance(sandbox := turn.result(), PooledSandbox):
                self.release(sandbox)  # cancelled after it got the place, which goes to the next in the queue
            raise
        finally:
            self._queue.pop(turn, None)
        if isinstance(outcome, Exception):
            raise outcome.with_traceback(None)  # all waiters raise the same object, each with its own traceback
        return outcome

    def dismiss(self, reason: Exception) -> None:
        """Raise `reason` in every `wait`."""
        while self._queue:
            turn, _ = self._queue.popitem(last=False)
            if not turn.done():
                turn.set_result(reason)

    def _serve(self) -> None:
        while self._queue:
            turn = next(iter(self._queue))
            if not turn.done():  # otherwise it was cancelled and is about to leave the queue
                sandbox = self.take()
                if sandbox is None:
                    return
                turn.set_result(sandbox)
            del self._queue[turn]

    def _list(self, sandbox: PooledSandbox) -> None:
        if sandbox.state is SandboxState.READY and sandbox.sessions < self.per_sandbox:
            self._by_load[sandbox.sessions][sandbox] = None

    def _unlist(self, sandbox: PooledSandbox) -> None:
        if sandbox.sessions < self.per_sandbox:
            self._by_load[sandbox.sessions].pop(sandbox, None)
