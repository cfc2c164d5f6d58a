"""A sandbox of the `cwsandbox` provider: it executes code and runs no server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from cwsandbox import ProcessResult, Sandbox, SandboxExecutionError, SandboxStatus

from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.errors import FinqaError, SandboxError
from finqa_cli.types import Ending, ExecutionRequest, ExecutionResult
from finqa_plugins.sandboxes._execution.calls import command, deadline_s, result
from finqa_plugins.sandboxes.coreweave.coreweave_cloud import Cloud
from finqa_plugins.sandboxes.coreweave.tags import PROBLEM_LABEL

HEALTH_TIMEOUT_S = 5.0
EXECUTE_PATIENCE_S = 5.0
"""Seconds in which a failed execution is repeated: each begins in a new process and folder, so it may be."""

MakeSandbox = Callable[[str], Awaitable[Sandbox]]
"""Creates the sandbox in the service; takes the problem that it is created for, or an empty text."""


class CoreWeaveSandbox(ExecutingSandbox):
    """A sandbox that executes code. Its id is a name of finqa, and a tag of the sandbox in the service.

    A sandbox for one use is created in the service by its first execution, which knows the problem.
    """

    def __init__(self, name: str, cloud: Cloud, make: MakeSandbox, forget: Callable[[CoreWeaveSandbox], None]) -> None:
        self._name = name
        self._cloud = cloud
        self._make = make
        self._forget = forget
        self._making: asyncio.Task[Sandbox] | None = None
        self._stopped = False
        self._gone = False

    @property
    def id(self) -> str:
        """`finqa-<12 hex digits>`."""
        return self._name

    async def ready(self, problem: str = "") -> Sandbox:
        """The running sandbox in the service. The first call creates it, and later ones wait for the same sandbox.

        Raises:
            SandboxError: The sandbox did not become ready, or was stopped.
            FinqaError: No try can succeed, because of the key, the quota, the image or the size.
        """
        if self._stopped:
            raise SandboxError(f"Sandbox {self._name} was stopped.")
        if self._making is None:
            self._making = asyncio.create_task(self._made(problem))
            self._making.add_done_callback(_seen)
        making = self._making
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            if making.cancelled():  # by `stop`; the caller that waits here was not
                raise SandboxError(f"Sandbox {self._name} was stopped.") from None
            raise

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """See `ExecutingSandbox`; also raises what `ready` raises if the sandbox is not created yet."""
        sandbox = await self.ready(request.labels.get(PROBLEM_LABEL, ""))
        argv, stdin = command(request)
        limit_s = deadline_s(request)
        ended = await self._cloud.call(
            f"executing code in sandbox {self._name}",
            lambda: _execute(sandbox, argv, stdin, limit_s),
            EXECUTE_PATIENCE_S,
        )
        found = result(ended.stdout_bytes, ended.returncode, request)
        if found.ending is Ending.KILLED and not await self.healthy():
            raise SandboxError(f"Sandbox {self._name} ended during an execution.")
        return found

    async def healthy(self) -> bool:
        """See `Sandbox`. A sandbox that is not created yet counts as healthy."""
        if self._stopped:
            return False
        if self._making is None or not self._making.done():
            return True
        sandbox = self._making.result()
        with contextlib.suppress(TimeoutError, FinqaError):
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                asked = await self._cloud.call(f"asking for sandbox {self._name}", lambda: self._cloud.status(sandbox))
                return asked is SandboxStatus.RUNNING
        return False

    async def stop(self) -> None:
        """See `Sandbox`.

        Raises:
            SandboxError: The sandbox still exists after a while; another call tries again.
        """
        self._stopped = True
        making = self._making
        if making is not None and not making.done():
            if not making.cancelling():
                making.cancel()
            await asyncio.wait({making})
        if making is not None and not self._gone and not making.cancelled() and making.exception() is None:
            await self._cloud.end(making.result(), self._name)
        self._gone = True
        self._forget(self)

    async def _made(self, problem: str) -> Sandbox:
        try:
            return await self._make(problem)
        except Exception:
            self._making = None  # so that the next execution tries again
            raise


async def _execute(sandbox: Sandbox, argv: Sequence[str], stdin: bytes, limit_s: float) -> ProcessResult:
    process = sandbox.exec(argv, timeout_seconds=limit_s, stdin=True)
    assert process.stdin is not None
    try:
        with contextlib.suppress(SandboxExecutionError):  # it is over already: its result has the reason
            await process.stdin.write(stdin)
            await process.stdin.close()
        return await process
    finally:
        process.cancel()  # does nothing to one that has ended


def _seen(making: asyncio.Task[Sandbox]) -> None:
    """Keep asyncio from reporting a failure that no caller waits for."""
    if not making.cancelled():
        making.exception()
