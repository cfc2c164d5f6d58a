"""One server process on loopback: its start, its health and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from finqa_cli.errors import ConfigError, FinqaError, SandboxError, StorageError
from finqa_cli.processes import start_time
from finqa_cli.types import ServerSpec
from finqa_plugins.sandboxes._serving.server_health import (
    HEALTH_TIMEOUT_S,
    HOST,
    POLL_S,
    answers,
    output_sentence,
    wait_until_healthy,
)

INHERITED_VARIABLES = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH")


class ServerProcess:
    """A server process, started by the constructor.

    A module inherits a listening socket that is bound here, so its port cannot go to others. A command binds its port
    itself: if another process takes the port first, the command fails to start, and a retry gets another port.
    """

    def __init__(self, spec: ServerSpec, log_path: Path) -> None:
        self._spec = spec
        self._log_path = log_path
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind((HOST, 0))
            self.port: int = listener.getsockname()[1]
            if spec.module:
                listener.listen(2048)
            else:
                listener.close()  # a command binds the port itself
            self._popen = _spawn(spec, log_path, listener, self.port)
        self.pid = self._popen.pid
        self.started = start_time(self.pid) or 0

    @property
    def url(self) -> str:
        """Base address."""
        return f"http://{HOST}:{self.port}"

    def running(self) -> bool:
        """Whether it has not exited yet."""
        return self._unreaped() and self._ended() is None

    async def healthy(self, timeout_s: float = HEALTH_TIMEOUT_S) -> bool:
        """Whether it answers its health path with status 200 in time. Never raises."""
        return self.running() and await answers(self.port, self._spec.health_path, timeout_s)

    async def wait_until_healthy(self, timeout_s: float) -> None:
        """Waits until it first answers with status 200.

        Raises:
            SandboxError: It exited or took too long; the message ends with its last output.
            ConfigError: It exited with status 78 (EX_CONFIG), so that another start would end in the same way.
        """

        async def ended() -> FinqaError | None:
            if self.running():
                return None
            message = f"The server {self._spec.server} exited at start. {self.tail()}"
            found = self._ended() if self._unreaped() else None
            if found is not None and (found.si_code, found.si_status) == (os.CLD_EXITED, ConfigError.exit_code):
                return ConfigError(message, remedy=self._spec.remedy or "correct what its last output names")
            return SandboxError(message)

        async def last_output() -> str:
            return self.tail()

        await wait_until_healthy(
            self._spec.server, timeout_s, healthy=self.healthy, ended=ended, last_output=last_output
        )

    async def stop(self, timeout_s: float) -> None:
        """Sends SIGTERM, then SIGKILL to the process group; nothing is left even if cancelled. Idempotent."""
        if not self._unreaped():
            return
        try:
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + timeout_s
            while self.running() and time.monotonic() < deadline:  # noqa: ASYNC110  SIGCHLD belongs to the application
                await asyncio.sleep(POLL_S)
        finally:
            self._signal(signal.SIGKILL)
            self._popen.wait()

    def tail(self) -> str:
        """The end of its output, in a sentence."""
        try:
            text = self._log_path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        return output_sentence(text)

    def _ended(self) -> os.waitid_result | None:
        # WNOWAIT does not reap the process, so its pid stays ours until `stop`.
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def _unreaped(self) -> bool:
        return self._popen.returncode is None

    def _signal(self, number: int) -> None:
        # The leader is not reaped yet, so its pid, which is the group's id, cannot be another process's.
        if self._unreaped():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def _spawn(spec: ServerSpec, log_path: Path, listener: socket.socket, port: int) -> subprocess.Popen[bytes]:
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        output = log_path.open("wb")
    except OSError as error:
        raise StorageError(
            f"Cannot write {log_path}: {error.strerror or error}.",
            remedy="export FINQA_HOME=DIR, with a folder that can be written",
        ) from error
    try:
        with output as log:
            return subprocess.Popen(
                [sys.executable, "-m", "finqa_plugins.sandboxes.local.reaper", *_program(spec, port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=log_path.parent,
                env=_environment(spec, listener, port),
                pass_fds=(listener.fileno(),) if spec.module else (),
                start_new_session=True,
            )
    except OSError as error:
        raise SandboxError(f"Cannot start the server {spec.server}: {error}") from error


def _program(spec: ServerSpec, port: int) -> list[str]:
    """Arguments of the reaper: a module to run, or `--` and a command."""
    if spec.module:
        return [spec.module]
    return ["--", *spec.process(HOST, port)[0]]


def _environment(spec: ServerSpec, listener: socket.socket, port: int) -> Mapping[str, str]:
    """The spec's variables, and of this process's only those that Python needs to start, so none of its secrets."""
    inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    return {
        **inherited,
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
        **spec.process(HOST, port)[1],
        **({"FINQA_LISTEN_FD": str(listener.fileno())} if spec.module else {}),
        "FINQA_PARENT_PID": str(os.getpid()),
    }
