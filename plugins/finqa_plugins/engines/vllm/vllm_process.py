"""One server process on loopback, with all the processes that it starts: started, watched and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from finqa_cli.errors import StorageError
from finqa_plugins.engines.vllm import kernel_folders, vllm_guard
from finqa_plugins.engines.vllm.vllm_command import HOST, Launch

POLL_S = 0.05
STOP_S = vllm_guard.GRACE_S + vllm_guard.TRACKERS_S + 5.0
"""For the guard to end what it guards, before it is ended as well."""

_TAIL_BYTES = 64 * 2**10


def free_port() -> int:
    """A port of loopback that nobody listens on now; vLLM takes no socket that is open already."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


class ServerProcess:
    """Starts on construction, below a guard (see `guard`) in a session of its own.

    Raises:
        StorageError: The log cannot be written or the process cannot be started.
    """

    def __init__(self, launch: Launch, log_path: Path) -> None:
        self.log_path = log_path
        self._log_begin = 0
        self._scratch: Path | None = None
        self._guard = self._spawn(launch)

    @property
    def pid(self) -> int:
        """Of the guard, which is also the process group of the server."""
        return self._guard.pid

    def running(self) -> bool:
        """False once the server has exited."""
        # WNOWAIT: looks without reaping, so that the pid, which names the group, stays ours until `stop`.
        return self._unreaped() and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    @property
    def status(self) -> int | None:
        """Exit status, as a shell reports it; None while it runs."""
        if not self._unreaped():
            return self._guard.returncode
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if ended is None else ended.si_status

    def output(self) -> str:
        """The end of what it wrote since it was started."""
        try:
            with self.log_path.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_begin, end - _TAIL_BYTES))
                return log.read().decode("utf-8", errors="replace")
        except OSError:
            return ""

    async def stop(self) -> None:
        """Ends server, children and guard; nothing is left even when this is cancelled. Idempotent."""
        if not self._unreaped():
            return
        if self._guard.stdin is not None:
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                while self.running():  # noqa: ASYNC110  SIGCHLD belongs to the application
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            pass
        finally:
            self._end_group()
            self._guard.wait()
            self._remove_scratch()

    def _spawn(self, launch: Launch) -> subprocess.Popen[bytes]:
        try:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            with self.log_path.open("ab") as log:
                self._log_begin = log.tell()
                self._scratch = kernel_folders.make(launch.environment)
                return subprocess.Popen(
                    [sys.executable, "-I", vllm_guard.__file__, str(self._scratch), *launch.arguments],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=self.log_path.parent,
                    env=kernel_folders.variables(self._scratch, launch.environment),
                    start_new_session=True,
                )
        except OSError as error:
            self._remove_scratch()
            raise StorageError(f"Cannot start a vLLM server with its log at {self.log_path}: {error}.") from error

    def _remove_scratch(self) -> None:
        """The guard does, unless it was killed."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _unreaped(self) -> bool:
        return self._guard.returncode is None

    def _end_group(self) -> None:
        # A guard that is not reaped yet keeps its pid, which is the group's id, from belonging to anyone else.
        if self._unreaped():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
