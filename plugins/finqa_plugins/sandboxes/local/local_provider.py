"""The `local` provider: sandboxes that share server processes, servers started by commands, execution of code."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import overload

import structlog

from finqa_cli.contracts import SandboxContext, SandboxProvider, ServingSandbox
from finqa_cli.errors import ConfigError, MissingDependencyError, SandboxError, StorageError
from finqa_cli.types import ExecutionSpec, SandboxInfo, SandboxSpec, ServerSpec
from finqa_plugins.sandboxes._serving.server_health import POLL_S
from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
from finqa_plugins.sandboxes.local.local_executions import LocalExecutingSandbox, LocalExecutingSandboxes
from finqa_plugins.sandboxes.local.local_ledger import Ledger, SandboxEntry, ServerEntry, ServerFile, is_running
from finqa_plugins.sandboxes.local.server_process import ServerProcess

log = structlog.get_logger(__name__)

ANSWER_HOLDS_S = 1.0
"""Seconds for which a server's good answer to a health check counts for all its sandboxes."""


FEWEST_PROCESSES = 2
"""Minimum number of server processes for a spec with several sandboxes."""


class LocalSandboxProvider(SandboxProvider):
    """Sandboxes on this machine.

    A server process ends with its last sandbox. When a server dies, its sandboxes are unhealthy from then on, and the
    next start gets a new process. Servers end with the thread that called `start`: call it from a thread that stays.
    """

    def __init__(self, config: LocalSandboxConfig | None, context: SandboxContext) -> None:
        self._config = config or LocalSandboxConfig()
        self._ledger = Ledger(context.home / "local")
        self._servers: list[_Server] = []
        self._executing = LocalExecutingSandboxes(self._config, context.home / "local")
        self._closed = False

    @overload
    async def start(self, spec: ServerSpec, labels: Mapping[str, str]) -> LocalSandbox: ...
    @overload
    async def start(self, spec: ExecutionSpec, labels: Mapping[str, str]) -> LocalExecutingSandbox: ...
    @overload
    async def start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> LocalSandbox | LocalExecutingSandbox: ...
    async def start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> LocalSandbox | LocalExecutingSandbox:
        """A sandbox on the least loaded server of this spec or on a new one; for code, one without a server.

        Raises:
            SandboxError: The server did not become healthy; the message ends with its last output.
            ConfigError: Code cannot be isolated here; or `dangerously_run_unisolated` is set although the environment
                executes no code; or the server is an image.
            MissingDependencyError: The server needs packages that are not installed.
        """
        if self._closed:
            raise SandboxError("The sandbox provider is closed.")
        if isinstance(spec, ExecutionSpec):
            return await self._executing.start(labels)
        if self._config.dangerously_run_unisolated:
            raise ConfigError(
                "This environment does not execute code of a policy, so dangerously_run_unisolated "
                "would have no effect.",
                remedy="leave out --dangerously-run-unisolated",
            )
        if spec.image:
            raise ConfigError(
                f"Local sandboxes are processes on this machine; they cannot start the image {spec.image}.",
                remedy="--sandbox docker, or name the server by a command or a module",
            )
        _check_installed(spec)
        server = self._choose(spec)
        sandbox_id = server.new_id()
        try:
            server.add(sandbox_id, labels)
            await server.ready()
        except BaseException:
            await self._release(server, sandbox_id)
            raise
        return LocalSandbox(self, server, sandbox_id)

    def most_sandboxes(self, spec: SandboxSpec) -> int | None:
        """The limit on servers that are commands; None for servers of finqa, which sandboxes share."""
        return self._config.commands if isinstance(spec, ServerSpec) and spec.command else None

    def leftovers(self) -> Sequence[Path]:
        """Ledger files and logs of ended servers, and files of sandboxes for code whose owner is gone."""
        return [*self._ledger.leftovers(), *self._executing.leftovers()]

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxInfo]:
        """This user's sandboxes with all these labels whose server or owner is running."""
        serving = [
            SandboxInfo(id=sandbox_id, state="started", labels=sandbox.labels, created=sandbox.created)
            for entry in self._ledger.entries()
            for sandbox_id, sandbox in entry.sandboxes.items()
        ]
        return [info for info in (*serving, *self._executing.list()) if labels.items() <= info.labels.items()]

    async def reap(self, sandbox_id: str) -> None:
        """End a sandbox. If another process started it, end its server and so all sandboxes on that server."""
        for server in list(self._servers):
            if sandbox_id in server.sandboxes:
                await self._release(server, sandbox_id)
                return
        for entry in self._ledger.entries():
            if sandbox_id in entry.sandboxes:
                await _end_foreign(entry, self._config.stop_timeout_s)
                self._ledger.remove(entry)
                return
        await self._executing.reap(sandbox_id)

    async def close(self) -> None:
        """Ends every server and every execution. Idempotent."""
        self._closed = True
        servers, self._servers = self._servers, []
        await asyncio.gather(self._executing.close(), *(server.stop() for server in servers))

    def _choose(self, spec: ServerSpec) -> _Server:
        key = _key(spec)
        shared = (
            not spec.command
        )  # another project's server may have one state for all sessions, or take only one session
        candidates = [server for server in self._servers if shared and server.key == key and server.usable()]
        least = min(candidates, key=lambda server: len(server.sandboxes), default=None)
        alone = len(candidates) < FEWEST_PROCESSES  # so that the death of one process does not end all sandboxes
        full = least is None or alone or len(least.sandboxes) >= self._config.sandboxes_per_process
        if least is not None and not (full and len(candidates) < self._config.processes):
            return least
        server = _Server(key, spec, self._ledger, self._config)
        self._servers.append(server)
        return server

    async def _release(self, server: _Server, sandbox_id: str) -> None:
        server.remove(sandbox_id)
        if not server.sandboxes and server in self._servers:
            self._servers.remove(server)
            await server.stop()


class LocalSandbox(ServingSandbox):
    """A sandbox on a server process, which other sandboxes may share."""

    def __init__(self, provider: LocalSandboxProvider, server: _Server, sandbox_id: str) -> None:
        self._provider = provider
        self._server = server
        self._id = sandbox_id

    @property
    def id(self) -> str:
        """The id, unique among processes."""
        return self._id

    @property
    def server_id(self) -> str:
        """Id of the sandbox's server process."""
        return self._server.id

    @property
    def pid(self) -> int:
        """Process id of the sandbox's server, which other sandboxes may share."""
        return self._server.process.pid

    def url(self) -> str:
        """Base address of the server on loopback."""
        return self._server.process.url

    async def healthy(self) -> bool:
        """Whether the sandbox is not stopped and its server answers. A silent server gets no new sandboxes."""
        if self._id not in self._server.sandboxes:
            return False
        return await self._server.healthy()

    async def stop(self) -> None:
        """Ends the sandbox; the last one on a server ends the process."""
        await self._provider._release(self._server, self._id)


class _Server:
    """A server process, its sandboxes and its ledger file."""

    def __init__(self, key: object, spec: ServerSpec, ledger: Ledger, config: LocalSandboxConfig) -> None:
        self.key = key
        self.sandboxes: dict[str, SandboxEntry] = {}
        self.id = f"local-{secrets.token_hex(4)}"
        self._numbers = itertools.count(1)
        self._ledger = ledger
        self._file: ServerFile | None = None
        self._config = config
        self._stopped = False
        self.distrusted = False
        self._answered = float("-inf")
        self.process = ServerProcess(spec, ledger.log_path(self.id))
        self._ready = asyncio.ensure_future(self.process.wait_until_healthy(config.start_timeout_s))

    def usable(self) -> bool:
        """Whether it may get new sandboxes: it has not died, hung, failed to start or been stopped."""
        failed = self._ready.done() and (self._ready.cancelled() or self._ready.exception() is not None)
        return not (self._stopped or self.distrusted or failed) and self.process.running()

    async def healthy(self) -> bool:
        """Whether the process runs and answers; a good answer within `ANSWER_HOLDS_S` counts."""
        began = time.monotonic()
        if began - self._answered < ANSWER_HOLDS_S:
            return self.process.running()
        answers = await self.process.healthy()
        self._answered = began if answers else float("-inf")
        self.distrusted |= not answers
        return answers

    async def ready(self) -> None:
        """Waits for the start that all sandboxes share; a caller's cancellation does not cancel it for the others."""
        await asyncio.shield(self._ready)

    def new_id(self) -> str:
        """An id for a new sandbox of this server."""
        return f"{self.id}-{next(self._numbers)}"

    def add(self, sandbox_id: str, labels: Mapping[str, str]) -> None:
        """Adds a sandbox to the ledger.

        Raises:
            StorageError: The ledger cannot be written.
        """
        if self._file is None:
            self._file = self._ledger.create(self._entry())
        self.sandboxes[sandbox_id] = SandboxEntry(labels=dict(labels), created=time.time())
        self._file.add(sandbox_id, self.sandboxes[sandbox_id])

    def remove(self, sandbox_id: str) -> None:
        """Removes a sandbox from the ledger, with the last one also the file. Idempotent."""
        known = self.sandboxes.pop(sandbox_id, None) is not None
        if known and self.sandboxes and self._file is not None and not self._stopped:
            try:
                self._file.remove(sandbox_id)
            except StorageError as error:
                # Log: A file below `FINQA_HOME` cannot be written.
                log.warning("the sandbox ledger is out of date", reason=error.message)

    async def stop(self) -> None:
        """Ends the process and removes its files."""
        self._stopped = True
        self.sandboxes.clear()
        self._ready.cancel()
        try:
            await asyncio.gather(self._ready, return_exceptions=True)
            if not self.process.running():
                # Log: At the end of a run, a server process on this machine had already ended.
                log.warning("a sandbox server had died", server=self.id, pid=self.process.pid, log=self.process.tail())
        finally:
            try:
                await self.process.stop(self._config.stop_timeout_s)
            finally:
                if self._file is not None:
                    self._file.close()
                    self._file = None
                self._ledger.remove(self._entry())

    def _entry(self) -> ServerEntry:
        process = self.process
        return ServerEntry(
            id=self.id, pid=process.pid, started=process.started, port=process.port, sandboxes=dict(self.sandboxes)
        )


def _check_installed(spec: ServerSpec) -> None:
    if missing := [name for name in spec.requires if importlib.util.find_spec(name) is None]:
        raise MissingDependencyError(
            f"The server {spec.server} needs {', '.join(missing)}, which is not installed.",
            remedy=f"pip install 'finqa[{spec.extra}]'" if spec.extra else f"pip install {missing[0]}",
        )


def _key(spec: ServerSpec) -> object:
    environment = tuple(sorted(spec.environment.items()))
    data = (spec.snapshot.digest, str(spec.snapshot.path)) if spec.snapshot else None
    return (spec.module, spec.command, data, environment, spec.health_path)


async def _end_foreign(entry: ServerEntry, timeout_s: float) -> None:
    try:
        handle = os.pidfd_open(entry.pid)
    except ProcessLookupError:
        return
    try:
        if not is_running(entry):  # checked after opening: the handle stays with its process even if the pid is reused
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
            deadline = time.monotonic() + timeout_s
            while is_running(entry) and time.monotonic() < deadline:  # noqa: ASYNC110  not our child: no event reports it
                await asyncio.sleep(POLL_S)
    finally:
        os.close(handle)
