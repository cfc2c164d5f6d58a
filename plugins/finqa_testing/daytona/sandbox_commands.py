"""Commands in sandboxes: servers are processes that sandboxes share; a shell of this machine runs all others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from finqa_testing.daytona import server_guard
from finqa_testing.daytona.http_service import HOST

INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH")
HOST_VARIABLES = (*INHERITED_VARIABLES, "HOST", "PORT")
STOP_S = 3.0
POLL_S = 0.05
KILLED = 137
TIMED_OUT = 124
DEFAULT_TIMEOUT_S = 360.0
_SERVER = re.compile(
    r"^\s*(?:exec\s+)?(?P<variables>(?:[A-Za-z_]\w*=\S*\s+)*)(?:exec\s+)?python[\d.]*\s+-m\s+(?P<rest>[^|;&<>`$()]+)$"
)
_MOVED = re.compile(r"^\s*cd\s+(?P<folder>\S+)\s*&&\s*(?P<rest>.+)$", re.DOTALL)


class ServerProcess:
    """A child process that serves one module on its own port, and ends with this process.

    Attributes:
        users: Number of sandboxes that it serves.
    """

    def __init__(self, module: str, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with socket.create_server((HOST, 0)) as free:
            self.port: int = free.getsockname()[1]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", server_guard.__file__, module, *self._placed(arguments)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                env={**environment, "HOST": HOST, "PORT": str(self.port)},
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.users = 0

    def _placed(self, arguments: tuple[str, ...]) -> list[str]:
        """Returns the arguments with this machine's address after `--host` and `--port`."""
        own = {"--host": HOST, "--port": str(self.port)}
        return [own.get(before, argument) for before, argument in zip(("", *arguments), arguments, strict=False)]

    def exit_code(self) -> int | None:
        """Returns the exit code; None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """Returns the output so far."""
        try:
            return self._log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    async def stop(self) -> None:
        """Sends SIGTERM to the process group, and SIGKILL if it has not ended after a while."""
        self._signal(signal.SIGTERM)
        for _ in range(int(STOP_S / POLL_S)):
            if self.exit_code() is not None:
                break
            await asyncio.sleep(POLL_S)
        self.kill()

    def kill(self) -> None:
        """Kills the process group and waits for its end."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _signal(self, number: int) -> None:
        if self.exit_code() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


class Servers:
    """The server processes of all images. Sandboxes that need the same server share `width` copies."""

    def __init__(self, folder: Path, width: int) -> None:
        self._folder = folder
        self._width = width
        self._running: dict[tuple[object, ...], list[ServerProcess]] = {}
        self._started = 0

    def attach(
        self, image: str, module: str, arguments: tuple[str, ...], environment: Mapping[str, str]
    ) -> ServerProcess:
        """Returns a new copy of a server, or the copy with the fewest users if there are `width` copies already.

        Raises:
            OSError: The server cannot be started.
        """
        copies = self._running.setdefault((image, module, arguments, tuple(sorted(environment.items()))), [])
        for dead in [copy for copy in copies if copy.exit_code() is not None]:
            dead.kill()  # closes its pipe
            copies.remove(dead)
        if len(copies) < self._width:
            self._started += 1
            log = self._folder / f"server-{self._started}.log"
            copies.append(ServerProcess(module, arguments, environment, log))
            chosen = copies[-1]
        else:
            chosen = min(copies, key=lambda copy: copy.users)
        chosen.users += 1
        return chosen

    def all(self) -> list[ServerProcess]:
        """Returns every process that was started and not replaced."""
        return [server for copies in self._running.values() for server in copies]

    async def close(self) -> None:
        """Ends all servers."""
        await asyncio.gather(*(server.stop() for server in self.all()))


class Command(Protocol):
    """A command of a session."""

    @property
    def text(self) -> str:
        """The command line as it was sent."""
        ...

    def exit_code(self) -> int | None:
        """Returns the exit code; None while it runs."""
        ...

    def output(self) -> str:
        """Returns the output so far."""
        ...

    def end(self) -> None:
        """Kills it."""
        ...


@dataclass(slots=True, eq=False)
class ServerCommand:
    """The use of a shared server by a sandbox. It ends with the sandbox; the process still serves other sandboxes."""

    text: str
    server: ServerProcess
    ended: bool = False

    def exit_code(self) -> int | None:
        """Returns the exit code of the process, or that of a killed process once the sandbox has ended."""
        return KILLED if self.ended else self.server.exit_code()

    def output(self) -> str:
        """Returns the output of the process."""
        return self.server.output()

    def end(self) -> None:
        """Ends the use by the sandbox."""
        self.server.users -= not self.ended
        self.ended = True


@dataclass(slots=True, eq=False)
class FailedCommand:
    """A command that could not be started."""

    text: str
    message: str

    def exit_code(self) -> int | None:
        """Returns 1."""
        return 1

    def output(self) -> str:
        """Returns the reason of the failure."""
        return self.message

    def end(self) -> None:
        """Does nothing, because no process runs."""


class ShellCommand:
    """A process of `/bin/sh`, whose standard error is part of its output.

    Attributes:
        lingers: Whether it has ended and left processes running in its process group.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._output = bytearray()
        self._process: asyncio.subprocess.Process | None = None
        self._code: int | None = None
        self.lingers = False

    async def run(self, command_line: str, folder: Path, environment: Mapping[str, str], timeout_s: float) -> None:
        """Runs the command until it ends; if it takes too long it is killed with the exit code 124."""
        self._process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command_line,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                while chunk := await self._process.stdout.read(65_536):
                    self._output += chunk
                self._code = await self._process.wait()
        except TimeoutError:
            self._code = TIMED_OUT
            self.end()
        except asyncio.CancelledError:
            self.end()
            raise
        finally:
            await self._process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, 0)
            self.lingers = True

    def exit_code(self) -> int | None:
        """Returns the exit code; None while it runs."""
        return self._code

    def output(self) -> str:
        """Returns the output so far."""
        return self._output.decode("utf-8", "replace")

    def end(self) -> None:
        """Kills its process group, including processes that it left in the background."""
        if self._process is not None and (self._process.returncode is None or self.lingers):
            self.lingers = False
            self._code = KILLED if self._code is None else self._code
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


@dataclass(slots=True, eq=False)
class Session:
    """A session of the toolbox: its commands by id, in order."""

    id: str
    commands: dict[str, Command] = field(default_factory=dict)

    def end(self) -> None:
        """Ends all its commands."""
        for command in self.commands.values():
            command.end()

    def dto(self) -> dict[str, object]:
        """Returns a Session of the SDK 0.226.1."""
        return {"sessionId": self.id, "commands": [command_dto(*item) for item in self.commands.items()]}


def command_dto(identifier: str, command: Command) -> dict[str, object]:
    """Returns a Command of the SDK 0.226.1."""
    code = command.exit_code()
    return {"id": identifier, "command": command.text, **({} if code is None else {"exitCode": code})}


def server_command(text: str) -> tuple[dict[str, str], str, tuple[str, ...]] | None:
    """Returns variables, module and arguments of a command line that starts a server; None for other commands.

    These are `[A=b ...] python -m MODULE ...`, and `[cd FOLDER &&] [exec] uvicorn APP ...`, also inside `sh -c`, as in
    the Dockerfiles of environments.
    """
    match = _SERVER.match(text)
    try:
        if match is None:
            return _uvicorn_command(text, "")
        words = shlex.split(match["rest"])
        variables = dict(word.partition("=")[::2] for word in shlex.split(match["variables"]))
    except ValueError:
        return None
    return variables, words[0], tuple(words[1:])


def _uvicorn_command(text: str, folder: str) -> tuple[dict[str, str], str, tuple[str, ...]] | None:
    moved = _MOVED.match(text)
    if moved is not None:
        return _uvicorn_command(moved["rest"], posixpath.join(folder, shlex.split(moved["folder"])[0]))
    words = shlex.split(text)
    if words[:1] == ["exec"]:
        words = words[1:]
    if words[:2] == ["sh", "-c"] and len(words) == 3:
        return _uvicorn_command(words[2], folder)
    if words[:1] != ["uvicorn"]:
        return None
    where = ("--app-dir", folder) if folder and "--app-dir" not in words else ()
    return {}, "uvicorn", (*words[1:], *where)


def host_environment(packages: Iterable[Path]) -> dict[str, str]:
    """Returns the variables of this process that programs in sandboxes need, with folders to import from added."""
    inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    paths = [str(path) for path in packages]
    paths += [path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {
        **inherited,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), inherited.get("PATH", os.defpath))),
        "PYTHONUNBUFFERED": "1",
        **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {}),
    }
