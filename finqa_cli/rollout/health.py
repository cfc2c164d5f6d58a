"""Health checks of the pool's sandboxes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

import structlog

from finqa_cli.rollout.pooled_sandboxes import PooledSandbox, SandboxState

log = structlog.get_logger(__name__)

RELAPSES = 3
SECONDS_TO_SECOND_CHECK = 1.0
CHECK_TIMEOUT_S = 15.0
NEIGHBOURS = 8
SECONDS_BETWEEN_CHECKS = 1.0


class HealthChecks:
    """Check each sandbox every `every_s` seconds (0: only on demand), and at once when something speaks against it.

    A missing answer makes a READY sandbox SUSPECT, and means that a SUSPECT or FAULTED one is lost. Sandboxes often die
    together, with a server or a machine that they share. So each missing answer has a few neighbours checked too, and
    makes those without a session SUSPECT: a shared death is known for all sandboxes in a few steps, while a single one
    costs a few checks.

    A sandbox may answer every check and fail every session. It is free more often than any other, so more and more
    sessions come to it. After the third that fails in a row, with no other session on it, it is lost too.
    """

    def __init__(self, move: Callable[[PooledSandbox, SandboxState], None], *, every_s: float, size: int) -> None:
        """Changes of state go through `move`, which is `SandboxPool.move`."""
        self._move = move
        self._every_s = every_s
        # A frozen server holds a check for many seconds; even with a quarter of them frozen no other check waits.
        self._turns = asyncio.Semaphore(max(32, size // 4))
        self._resting: OrderedDict[PooledSandbox, None] = OrderedDict()  # between two checks, the longest first

    async def watch(self, sandbox: PooledSandbox, spread: float) -> str:
        """Check a sandbox until it is lost, and return the reason; return "" when it is spent instead.

        Args:
            sandbox: A READY sandbox.
            spread: Above 0 up to 1, different for each sandbox: its share of the interval before the first check.
        """
        pause = self._every_s * spread
        self._resting[sandbox] = None
        self._resting.move_to_end(sandbox, last=False)
        try:
            while True:
                await _rest(sandbox, pause)
                self._resting.pop(sandbox, None)
                if sandbox.state is SandboxState.SPENT:
                    return ""
                answers = await self._answers(sandbox)
                sandbox.checked_at = asyncio.get_running_loop().time()
                if not answers:
                    pause = SECONDS_TO_SECOND_CHECK
                    self._check_neighbours(sandbox)
                    if sandbox.state in (SandboxState.SUSPECT, SandboxState.FAULTED):
                        return f"Sandbox {sandbox.sandbox.id} was lost: it does not answer."
                    self._suspect(sandbox)
                else:
                    pause = self._every_s
                    # `check_now` is set when a fault came in while this check was in progress.
                    if not sandbox.check_now.is_set() and not self._pass(sandbox):
                        return f"Sandbox {sandbox.sandbox.id} was lost: it answers, but all of its sessions fail."
                self._resting[sandbox] = None
        finally:
            self._resting.pop(sandbox, None)

    def _pass(self, sandbox: PooledSandbox) -> bool:
        """Make a sandbox READY that answered its check; return False when too many sessions in a row failed on it."""
        if sandbox.state is SandboxState.FAULTED and not sandbox.sessions:
            sandbox.relapses += 1
            if sandbox.relapses >= RELAPSES:
                return False
        if sandbox.state is not SandboxState.READY:
            self._move(sandbox, SandboxState.READY)
        return True

    def _suspect(self, sandbox: PooledSandbox) -> None:
        if sandbox.state is SandboxState.READY:
            self._move(sandbox, SandboxState.SUSPECT)

    def _check_neighbours(self, sandbox: PooledSandbox) -> None:
        """Have the sandboxes of the same process checked now, and a few others."""
        shared = sandbox.sandbox.server_id
        if shared != sandbox.sandbox.id:
            for other in self._resting:
                if other.sandbox.server_id == shared:
                    other.check_now.set()
        recently = asyncio.get_running_loop().time() - SECONDS_BETWEEN_CHECKS
        for _ in range(NEIGHBOURS):
            neighbour = next(iter(self._resting), None)
            if neighbour is None or neighbour.checked_at > recently:
                return
            del self._resting[neighbour]
            if not neighbour.sessions:
                self._suspect(neighbour)
            neighbour.check_now.set()

    async def _answers(self, sandbox: PooledSandbox) -> bool:
        async with self._turns:
            sandbox.check_now.clear()
            try:
                async with asyncio.timeout(CHECK_TIMEOUT_S):
                    return await sandbox.sandbox.healthy()
            except Exception as error:  # by contract it never raises; a provider's mistake must not end the watch
                log.warning("health check failed", sandbox=sandbox.sandbox.id, reason=repr(error))
                return False


async def _rest(sandbox: PooledSandbox, seconds: float) -> None:
    """Wait for some seconds (0: forever), or until the sandbox is to be checked now."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds or None):
            await sandbox.check_now.wait()
