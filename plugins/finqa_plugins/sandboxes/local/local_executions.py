"""Sandboxes that execute code. Each execution has its own namespaces, and no process runs between executions.

A small file represents a sandbox for other processes of this user. As no process runs between executions, removing the
file ends the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import structlog

from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.errors import SandboxError
from finqa_cli.processes import start_time
from finqa_cli.types import Ending, ExecutionRequest, ExecutionResult, SandboxInfo
from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
from finqa_plugins.sandboxes.local.control_groups import find_control_groups
from finqa_plugins.sandboxes.local.isolation import find_bare, find_isolation
from finqa_plugins.sandboxes.local.launches import BubblewrapLauncher, Launcher
from finqa_plugins.sandboxes.local.local_ledger import write_record
from finqa_plugins.sandboxes.local.supervision import supervise

log = structlog.get_logger(__name__)

SUFFIX = ".box"


class ExecutingSandboxFiles:
    """The folder with the files. Only the owner of a sandbox writes its file; any process may read or remove it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, labels: Mapping[str, str]) -> str:
        """Add a sandbox of this process, and return its id.

        Raises:
            StorageError: The disk is full or the folder cannot be written.
        """
        sandbox_id = f"local-{secrets.token_hex(6)}"
        row = {
            "schema_version": 1,
            "id": sandbox_id,
            "pid": os.getpid(),
            "started": start_time(os.getpid()),
            "labels": dict(labels),
            "created": time.time(),
        }
        write_record(self._path(sandbox_id), row)
        return sandbox_id

    def holds(self, sandbox_id: str) -> bool:
        """Whether the file still exists; any process may remove it."""
        return self._path(sandbox_id).exists()

    def remove(self, sandbox_id: str) -> None:
        """Ends a sandbox. Idempotent; ignores texts that are no id."""
        if sandbox_id == Path(sandbox_id).name:
            with contextlib.suppress(OSError):
                self._path(sandbox_id).unlink(missing_ok=True)

    def sandboxes(self) -> Iterator[SandboxInfo]:
        """Yields sandboxes whose owner is running; removes the files of others."""
        for path, info, running in self._rows():
            if running:
                yield info
            else:
                self.remove(path.stem)

    def leftovers(self) -> list[Path]:
        """Files of sandboxes whose owner is gone."""
        return [path for path, _, running in self._rows() if not running]

    def _rows(self) -> Iterator[tuple[Path, SandboxInfo, bool]]:
        """Each file with its sandbox and whether the owner is running."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            try:
                row = json.loads(path.read_text(encoding="utf-8"))
                owner, started = int(row["pid"]), int(row["started"])
                labels = {str(name): str(value) for name, value in row["labels"].items()}
                info = SandboxInfo(id=path.stem, state="started", labels=labels, created=float(row["created"]))
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # the file vanished meanwhile, or is not ours
            yield path, info, start_time(owner) == started

    def _path(self, sandbox_id: str) -> Path:
        return self._folder / f"{sandbox_id}{SUFFIX}"


class LocalExecutingSandboxes:
    """All sandboxes of one provider that execute code; limits their simultaneous executions.

    An execution ends with the thread that started it, and so with this process. The threads run until `close`.
    """

    def __init__(self, config: LocalSandboxConfig, folder: Path) -> None:
        self._config = config
        self._files = ExecutingSandboxFiles(folder)
        self._threads = ThreadPoolExecutor(config.executions_at_once, thread_name_prefix="execution")
        self._launcher: Launcher | None = None
        self._sandboxes: dict[str, LocalExecutingSandbox] = {}

    async def start(self, labels: Mapping[str, str]) -> LocalExecutingSandbox:
        """A new sandbox.

        Raises:
            ConfigError: Code cannot be isolated here, and the options require it.
            StorageError: The ledger cannot be written.
        """
        launcher = await asyncio.to_thread(self._find_launcher)
        sandbox_id = self._files.add(labels)
        sandbox = LocalExecutingSandbox(sandbox_id, launcher, self._threads, self)
        self._sandboxes[sandbox_id] = sandbox
        return sandbox

    def holds(self, sandbox_id: str) -> bool:
        """Whether the sandbox is not stopped yet, neither here nor by `finqa sandbox reap`."""
        return self._files.holds(sandbox_id)

    def forget(self, sandbox_id: str) -> None:
        """Removes a sandbox, so that no execution begins in it any more. Idempotent."""
        self._sandboxes.pop(sandbox_id, None)
        self._files.remove(sandbox_id)

    def leftovers(self) -> Sequence[Path]:
        """Return files of sandboxes whose owner is gone, of any process of this user."""
        return self._files.leftovers()

    def list(self) -> Sequence[SandboxInfo]:
        """The sandboxes of all processes of this user."""
        return list(self._files.sandboxes())

    async def reap(self, sandbox_id: str) -> None:
        """Ends a sandbox. Its execution ends at once if this process runs it, else at its time limit. Idempotent."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None:
            await sandbox.stop()
        self.forget(sandbox_id)

    async def close(self) -> None:
        """Ends the sandboxes and their executions. Idempotent."""
        await asyncio.gather(*(sandbox.stop() for sandbox in list(self._sandboxes.values())))
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _find_launcher(self) -> Launcher:
        if self._launcher is None:
            if self._config.dangerously_run_unisolated:
                self._launcher = find_bare(self._config.python)
                # Log: `dangerously_run_unisolated` is set; see [code execution](../guides/code-execution.md).
                log.warning("code that the policy writes runs WITHOUT ISOLATION: it can read and send your files")
            else:
                self._launcher = BubblewrapLauncher(find_isolation(self._config.python), find_control_groups())
        return self._launcher


class LocalExecutingSandbox(ExecutingSandbox):
    """A sandbox on this machine that executes code."""

    def __init__(
        self, sandbox_id: str, launcher: Launcher, threads: ThreadPoolExecutor, sandboxes: LocalExecutingSandboxes
    ) -> None:
        self._id = sandbox_id
        self._launcher = launcher
        self._threads = threads
        self._sandboxes = sandboxes
        self._running: dict[int, asyncio.Future[ExecutionResult]] = {}

    @property
    def id(self) -> str:
        """The id, unique among processes."""
        return self._id

    async def healthy(self) -> bool:
        """Whether it is not stopped yet."""
        return self._sandboxes.holds(self._id)

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """Waits for its turn, then executes the request. If cancelled, ends the execution before returning.

        Raises:
            SandboxError: The sandbox was stopped, or the machine could not make one; never because of the code.
        """
        if not self._sandboxes.holds(self._id):
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
        """Ends the sandbox and its execution."""
        self._sandboxes.forget(self._id)
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
            while not result.done():  # also after further cancellations: nothing may be left
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([result])
            if not result.cancelled():
                result.exception()  # so that asyncio does not report it
            raise
        finally:
            del self._running[stop]
            os.close(stop)


def _execute(launcher: Launcher, request: ExecutionRequest, stop: int) -> ExecutionResult:
    watch = select.poll()  # not select(), which takes no descriptor above 1023: there may be more
    watch.register(stop, select.POLLIN)
    if watch.poll(0):
        raise SandboxError("The execution was stopped before it started.")
    try:
        with launcher.prepared(request) as launch:
            result = supervise(launch, request.stdin, request.limits, stop)
            if result.ending is Ending.KILLED and launch.starved():
                raise SandboxError("This machine or container is out of memory, and the kernel ended an execution.")
            return result
    except OSError as error:  # out of descriptors halfway
        raise SandboxError(f"An execution failed: {error}") from error
