"""Commands in the sandboxes of a loopback CoreWeave: process trees on this machine that are ended as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

PATH = "/usr/local/bin:/usr/bin:/bin"
CHUNK = 65_536
LEAST_PYTHON = (3, 11)
NOT_FOUND = 127


class SandboxProcess:
    """One command in a sandbox, with pipes for its three standard streams."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, argv: Sequence[str], folder: Path) -> SandboxProcess:
        """Starts a command in the sandbox's folder, with the sandbox's own environment variables.

        Raises:
            OSError: There is no such command.
        """
        process = await asyncio.create_subprocess_exec(
            *([sandbox_python(), *argv[1:]] if argv[0] in ("python", "python3") else argv),
            cwd=folder,
            env={"PATH": PATH, "HOME": str(folder), "LANG": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process)

    async def write(self, data: bytes) -> None:
        """Writes to the standard input of the command; data that it no longer reads is dropped."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    def close_stdin(self) -> None:
        """Closes the standard input of the command."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def output(self) -> AsyncIterator[tuple[bool, bytes]]:
        """Yields the output until both streams end: (whether it is standard output, bytes)."""
        chunks: asyncio.Queue[tuple[bool, bytes]] = asyncio.Queue(maxsize=16)

        async def pump(stream: asyncio.StreamReader | None, is_stdout: bool) -> None:
            assert stream is not None
            while data := await stream.read(CHUNK):
                await chunks.put((is_stdout, data))
            await chunks.put((is_stdout, b""))

        pumps = [
            asyncio.create_task(pump(self._process.stdout, True)),
            asyncio.create_task(pump(self._process.stderr, False)),
        ]
        try:
            open_streams = 2
            while open_streams:
                is_stdout, data = await chunks.get()
                open_streams -= not data
                if data:
                    yield is_stdout, data
        finally:
            for task in pumps:
                task.cancel()

    async def exit_code(self) -> int:
        """Waits for the end and returns the exit code as a shell does: 128 plus the number of a signal."""
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def end(self) -> None:
        """Kills the command with all its descendants and waits for its end. Idempotent."""
        for pid in _tree(self._process.pid) if self._process.returncode is None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()


@functools.cache
def sandbox_python() -> str:
    """Returns the `python3` of sandboxes: the machine's own if it is new enough, because all users can read it."""
    found = shutil.which("python3", path=PATH)
    if found is not None:
        asked = subprocess.run(
            [found, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True
        )
        if asked.returncode == 0 and tuple(map(int, asked.stdout.split())) >= LEAST_PYTHON:
            return found
    return sys.executable


def _tree(root: int) -> list[int]:
    """Returns a process and its descendants; each is stopped before its children are read, so that it starts none."""
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGSTOP)
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
    return found
