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
"""Sessions in a row that fail on a sandbox which answers its checks, until it counts as lost."""

SECONDS_TO_SECOND_CHECK = 1.0
CHECK_TIMEOUT_S = 15.0
NEIGHBOURS = 8
"""Further sandboxes that are checked when one does not answer."""

SECONDS_BETWEEN_CHECKS = 1.0
"""A sandbox that was checked within this time is not checked again as a neighbour."""


class HealthChecks:
    """Check each sandbox every `every_s` seconds (0: only on demand), and at once after a fault on it.

    If a READY sandbox does not answer a check, it becomes SUSPECT; if a SUSPECT or FAULTED one does not answer, it is
    lost. Sandboxes often die together, with a server or a machine that they share. So each missing answer also starts
    checks of a few neighbours, and those without a session become SUSPECT. The loss of all sandboxes of a machine is
    detected in a few steps, while the loss of a single one costs a few checks.

    A sandbox may answer every check and fail every session. It is free more often than the others, so it gets more and
    more sessions. After three failed sessions in a row, with no other session on it, it counts as lost too.
    """

    def __init__(self, move: Callable[[PooledSandbox, SandboxState], None], *, every_s: float, size: int) -> None:
        """Use `move`, which is `SandboxPool.move`, for every change of state."""
        self._move = move
        self._every_s = every_s
        # A check of a frozen server takes many seconds. Even if a quarter of the servers freeze, no other check waits.
        self._turns = asyncio.Semaphore(max(32, size // 4))
        self._resting: OrderedDict[PooledSandbox, None] = OrderedDict()  # between two checks, oldest check first

    async def watch(self, sandbox: PooledSandbox, spread: float) -> str:
        """Check a sandbox until it is lost, and return the reason; return "" when it is spent instead.

        Args:
            sandbox: A READY sandbox.
            spread: Share of the interval that passes before the first check, above 0 up to 1, different for each
                sandbox.
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
                    # `check_now` is set if a fault was reported while this check was in progress.
                    if not sandbox.check_now.is_set() and not self._pass(sandbox):
                        return f"Sandbox {sandbox.sandbox.id} was lost: it answers, but all of its sessions fail."
                self._resting[sandbox] = None
        finally:
            self._resting.pop(sandbox, None)

    def _pass(self, sandbox: PooledSandbox) -> bool:
        """Make a sandbox that answered its check READY; return False if too many sessions in a row failed on it."""
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
        """Request checks of the sandboxes of the same process, and of a few others."""
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
            except Exception as error:  # by contract it never raises; a defect of a provider must not end the watch
                # Log: A sandbox provider raised an exception in a health check; the sandbox counts as dead.
                log.warning("health check failed", sandbox=sandbox.sandbox.id, reason=repr(error))
                return False


async def _rest(sandbox: PooledSandbox, seconds: float) -> None:
    """Wait for some seconds (0: forever), or until a check of the sandbox is requested."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds or None):
            await sandbox.check_now.wait()
