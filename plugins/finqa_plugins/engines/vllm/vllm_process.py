"""One server process on loopback, with all its child processes and temporary files: starts, watches and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from finqa_cli.errors import StorageError
from finqa_plugins.engines.vllm import vllm_guard
from finqa_plugins.engines.vllm.vllm_command import HOST, Launch

TEMPORARY_PREFIX = "finqa-vllm-"

LONGEST_SOCKET = 103
"""Longest path of a Unix socket in bytes on macOS; Linux allows 107."""

_NAMES = len(f"/{TEMPORARY_PREFIX}12345678/12345678-1234-1234-1234-123456789abc")
"""Bytes in the names of the folder and of a socket in it, which vLLM names by a uuid (vllm/utils/network_utils.py)."""


def make_temporary_folder(environment: Mapping[str, str]) -> Path:
    """Makes an empty folder for the server's temporary files, with a path short enough for the names of sockets.

    Args:
        environment: Environment of the server.

    Raises:
        OSError: The folder cannot be made.
    """
    usual = _usual(environment)
    fits = len(os.fsencode(usual)) + _NAMES <= LONGEST_SOCKET
    return Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=usual if fits else "/tmp"))


def temporary_variables(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with which a server puts its temporary files into `folder`.

    Compiled kernels stay where torch keeps them (torch/_inductor/runtime/cache_dir_utils.py), for the next start.
    TMPDIR is the first variable: setproctitle, which renames vLLM's processes, needs the first one to stay unchanged,
    and torch sets TORCHINDUCTOR_CACHE_DIR.
    """
    kernels = _usual(environment) / f"torchinductor_{_user()}"
    others = {name: value for name, value in environment.items() if name != "TMPDIR"}
    return {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(kernels), **others}


def _usual(environment: Mapping[str, str]) -> Path:
    named = Path(environment.get("TMPDIR", ""))
    return named if named.is_absolute() and os.access(named, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid_{os.getuid()}"


POLL_S = 0.05
STOP_S = vllm_guard.GRACE_S + vllm_guard.TRACKERS_S + 5.0
"""Seconds for the guard to end the server, before the guard is killed as well."""

_TAIL_BYTES = 64 * 2**10


def free_port(host: str = HOST) -> int:
    """A port of an address of this machine that no process listens on now; vLLM does not accept an open socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port


class ServerProcess:
    """A server process below a guard (see `vllm_guard`) in its own session; the constructor starts it.

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
        """Process id of the guard, which is also the process group of the server."""
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
        """The end of the output since the start."""
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
                self._scratch = make_temporary_folder(launch.environment)
                return subprocess.Popen(
                    [sys.executable, "-I", vllm_guard.__file__, str(self._scratch), *launch.arguments],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=self.log_path.parent,
                    env=temporary_variables(self._scratch, launch.environment),
                    start_new_session=True,
                )
        except OSError as error:
            self._remove_scratch()
            raise StorageError(f"Cannot start a vLLM server with its log at {self.log_path}: {error}.") from error

    def _remove_scratch(self) -> None:
        """Deletes the temporary folder; the guard did so before, unless it was killed."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _unreaped(self) -> bool:
        return self._guard.returncode is None

    def _end_group(self) -> None:
        # A guard that is not reaped yet keeps its pid, which is the id of the group.
        if self._unreaped():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
