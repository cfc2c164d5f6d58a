"""Boxes that execute code: nothing runs in one between two executions, and each execution has namespaces of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import structlog

from finqa_cli.errors import SandboxError
from finqa_cli.types import Ending, ExecutionRequest, ExecutionResult, SandboxInfo
from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
from finqa_plugins.sandboxes.local.control_groups import find_control_groups
from finqa_plugins.sandboxes.local.isolation import find_bare, find_isolation
from finqa_plugins.sandboxes.local.launches import BoxLauncher, Launcher
from finqa_plugins.sandboxes.local.sandbox_files import BoxFiles
from finqa_plugins.sandboxes.local.supervision import supervise

log = structlog.get_logger(__name__)


class ExecutingBoxes:
    """All boxes of one provider that execute code, and the few executions that they may have at once.

    An execution dies with the thread that started it, so with this process; the threads live as long as the boxes.
    """

    def __init__(self, config: LocalSandboxConfig, folder: Path) -> None:
        self._config = config
        self._files = BoxFiles(folder)
        self._threads = ThreadPoolExecutor(config.executions_at_once, thread_name_prefix="execution")
        self._launcher: Launcher | None = None
        self._boxes: dict[str, LocalExecutingSandbox] = {}

    async def start(self, labels: Mapping[str, str]) -> LocalExecutingSandbox:
        """A box.

        Raises:
            ConfigError: Code cannot be isolated here, and nobody said that it need not be.
            StorageError: The ledger cannot be written.
        """
        launcher = await asyncio.to_thread(self._find_launcher)
        box_id = self._files.add(labels)
        box = LocalExecutingSandbox(box_id, launcher, self._threads, self)
        self._boxes[box_id] = box
        return box

    def holds(self, box_id: str) -> bool:
        """False once it is stopped, here or by `finqa sandbox reap`."""
        return self._files.holds(box_id)

    def forget(self, box_id: str) -> None:
        """No new execution begins in it. Idempotent."""
        self._boxes.pop(box_id, None)
        self._files.remove(box_id)

    def list(self) -> Sequence[SandboxInfo]:
        """Those of every process of this user."""
        return list(self._files.boxes())

    async def reap(self, box_id: str) -> None:
        """Ends a box. What it is executing ends at once when it is ours, else at its limit on time. Idempotent."""
        box = self._boxes.get(box_id)
        if box is not None:
            await box.stop()
        self.forget(box_id)

    async def close(self) -> None:
        """Ends the boxes and all that they execute. Idempotent."""
        await asyncio.gather(*(box.stop() for box in list(self._boxes.values())))
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _find_launcher(self) -> Launcher:
        if self._launcher is None:
            if self._config.dangerously_run_unisolated:
                self._launcher = find_bare(self._config.python)
                log.warning("code that the policy writes runs WITHOUT ISOLATION: it can read and send your files")
            else:
                self._launcher = BoxLauncher(find_isolation(self._config.python), find_control_groups())
        return self._launcher


class LocalExecutingSandbox:
    """See `finqa_cli.contracts.ExecutingSandbox`."""

    def __init__(self, box_id: str, launcher: Launcher, threads: ThreadPoolExecutor, boxes: ExecutingBoxes) -> None:
        self._id = box_id
        self._launcher = launcher
        self._threads = threads
        self._boxes = boxes
        self._running: dict[int, asyncio.Future[ExecutionResult]] = {}

    @property
    def id(self) -> str:
        """Unique over processes."""
        return self._id

    async def healthy(self) -> bool:
        """True until it is stopped."""
        return self._boxes.holds(self._id)

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """Waits for its turn, then executes in a box of its own. Cancelled, it ends the execution first.

        Raises:
            SandboxError: The box was stopped, or the machine could not make one; not because of what the code did.
        """
        if not self._boxes.holds(self._id):
            raise SandboxError(f"Sandbox {self._id} was stopped.")
        try:
            stop = os.eventfd(0)
        except OSError as error:
            raise SandboxError(f"Cannot start an execution: {error}") from error
        try:
            job = self._threads.submit(_execute, self._launcher, request, stop)
        except RuntimeError as error:
            os.close(stop)
            raise SandboxError(f"Sandbox {self._id} was stopped.") from error
        return await self._finish(job, stop)

    async def stop(self) -> None:
        """Ends the box and what it executes."""
        self._boxes.forget(self._id)
        running = dict(self._running)
        for stop in running:
            os.eventfd_write(stop, 1)
        await asyncio.gather(*running.values(), return_exceptions=True)

    async def _finish(self, job: Future[ExecutionResult], stop: int) -> ExecutionResult:
        result = asyncio.wrap_future(job)
        self._running[stop] = result
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            if not job.cancel():
                os.eventfd_write(stop, 1)
            while not result.done():  # however often it is cancelled: nothing may be left
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([result])
            if not result.cancelled():
                result.exception()  # heard
            raise
        finally:
            del self._running[stop]
            os.close(stop)


def _execute(launcher: Launcher, request: ExecutionRequest, stop: int) -> ExecutionResult:
    watch = select.poll()  # select() takes no descriptor above 1023, and hundreds of boxes and connections go there
    watch.register(stop, select.POLLIN)
    if watch.poll(0):
        raise SandboxError("The execution was given up before it began.")
    try:
        with launcher.prepared(request) as launch:
            result = supervise(launch, request.stdin, request.limits, stop)
            if result.ending is Ending.KILLED and launch.starved():
                raise SandboxError("This machine or container is out of memory, and the kernel ended an execution.")
            return result
    except OSError as error:  # out of descriptors halfway
        raise SandboxError(f"An execution failed: {error}") from error
