"""Real server processes that many boxes share, because each box would run the very same one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from finqa_cli.testing.daytona import network_guard
from finqa_cli.testing.daytona.loopback_images import Image

INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH")
HOST = "127.0.0.1"
STOP_S = 3.0
POLL_S = 0.05


class ServerProcess:
    """A child that serves one module on a port of its own, and dies with this process."""

    def __init__(self, module: str, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self.port = _free_port()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", network_guard.__file__, module, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                env={**environment, "HOST": HOST, "PORT": str(self.port)},
                start_new_session=True,
            )
        self.pid = self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """What it has written so far."""
        try:
            return self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL to its whole group."""
        self._signal(signal.SIGTERM)
        for _ in range(int(STOP_S / POLL_S)):
            if self.exit_code() is not None:
                break
            await asyncio.sleep(POLL_S)
        self.kill()

    def kill(self) -> None:
        """Ends it at once."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _signal(self, number: int) -> None:
        if self.exit_code() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


class Servers:
    """The processes of all images: boxes that want the same one are dealt over `width` copies in turn."""

    def __init__(self, folder: Path, width: int) -> None:
        self._folder = folder
        self._width = width
        self._running: dict[tuple[object, ...], list[ServerProcess]] = {}
        self._dealt: dict[tuple[object, ...], int] = {}

    def attach(
        self, image: Image, module: str, arguments: tuple[str, ...], variables: Mapping[str, str]
    ) -> ServerProcess:
        """A running server of this module with these variables, shared or started now.

        Raises:
            OSError: It cannot be started.
        """
        environment = image_environment(image, variables)
        key = (image.id, module, arguments, tuple(sorted(environment.items())))
        number = self._dealt.get(key, 0)
        self._dealt[key] = number + 1
        copies = self._running.setdefault(key, [])
        slot = number % self._width
        if slot < len(copies) and copies[slot].exit_code() is None:
            return copies[slot]
        if slot < len(copies):
            copies[slot].kill()  # it is dead; its pipe is still open
        log = self._folder / f"server-{sum(map(len, self._running.values()))}-{number}.log"
        server = ServerProcess(module, arguments, environment, log)
        copies[slot : slot + 1] = [server]
        return server

    def all(self) -> list[ServerProcess]:
        """Every process that was started and not replaced."""
        return [server for copies in self._running.values() for server in copies]

    async def close(self) -> None:
        """Ends all of them."""
        await asyncio.gather(*(server.stop() for server in self.all()))


def image_environment(image: Image, variables: Mapping[str, str]) -> dict[str, str]:
    """What a program of the image is given. No key and no secret of this process gets in."""
    inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    paths = [str(path) for path in image.packages]
    paths += [path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path]
    told = {**image.environment, **variables}
    return {
        **inherited,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), inherited.get("PATH", os.defpath))),
        "PYTHONUNBUFFERED": "1",
        **image.translated(
            {name: value for name, value in told.items() if name not in (*INHERITED_VARIABLES, "HOST", "PORT")}
        ),
        **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {}),
    }


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
