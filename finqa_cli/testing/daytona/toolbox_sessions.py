"""Commands inside boxes: servers are shared processes, anything else is run by a shell of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from finqa_cli.testing.daytona.servers import ServerProcess

KILLED = 137
TIMED_OUT = 124
DEFAULT_TIMEOUT_S = 360.0
_SERVER = re.compile(
    r"^\s*(?:exec\s+)?(?P<variables>(?:[A-Za-z_]\w*=\S*\s+)*)(?:exec\s+)?python[\d.]*\s+-m\s+(?P<rest>[^|;&<>`$()]+)$"
)


class Command(Protocol):
    """A command of a session."""

    @property
    def text(self) -> str:
        """What was asked for."""
        ...

    def exit_code(self) -> int | None:
        """None while it runs."""
        ...

    def output(self) -> str:
        """What it has written so far."""
        ...

    def end(self) -> None:
        """Kills it."""
        ...


@dataclass(slots=True, eq=False)
class ServerCommand:
    """A box's part in a shared server. It ends with the box, the process goes on for the others."""

    text: str
    server: ServerProcess
    ended: bool = False

    def exit_code(self) -> int | None:
        """The process's, or that of a killed one when the box is gone."""
        return KILLED if self.ended else self.server.exit_code()

    def output(self) -> str:
        """The process's."""
        return self.server.output()

    def end(self) -> None:
        """The box is gone."""
        self.ended = True


@dataclass(slots=True, eq=False)
class FailedCommand:
    """A command that was over at once."""

    text: str
    message: str
    code: int = 1

    def exit_code(self) -> int | None:
        """Not 0."""
        return self.code

    def output(self) -> str:
        """Why."""
        return self.message

    def end(self) -> None:
        """Nothing runs."""


class ShellCommand:
    """A process of `/bin/sh`. Its standard error goes to its output.

    Attributes:
        lingers: It has ended and left something running in its process group.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._output = bytearray()
        self._process: asyncio.subprocess.Process | None = None
        self._code: int | None = None
        self.lingers = False

    async def run(self, translated: str, folder: Path, environment: Mapping[str, str], timeout_s: float) -> None:
        """Runs it to its end; exit code 124 when it takes too long."""
        self._process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            translated,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_s):
                await self._read()
                self._code = await self._process.wait()
        except TimeoutError:
            self._code = TIMED_OUT
            self.end()
        except asyncio.CancelledError:
            self.end()
            raise
        finally:
            await self._process.wait()
        self.lingers = _group_exists(self._process.pid)

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while chunk := await self._process.stdout.read(65_536):
            self._output += chunk

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._code

    def output(self) -> str:
        """What it has written so far."""
        return self._output.decode("utf-8", "replace")

    def end(self) -> None:
        """Kills its group, what it left in the background included."""
        if self._process is not None and (self._process.returncode is None or self.lingers):
            self.lingers = False
            self._code = KILLED if self._code is None else self._code
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


@dataclass(slots=True, eq=False)
class Session:
    """A session of the toolbox: its commands in order."""

    id: str
    commands: dict[str, Command] = field(default_factory=dict)

    def end(self) -> None:
        """Kills all of them."""
        for command in self.commands.values():
            command.end()

    def dto(self) -> dict[str, object]:
        """Session of the SDK 0.226.1."""
        return {"sessionId": self.id, "commands": [command_dto(*item) for item in self.commands.items()]}


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def command_dto(identifier: str, command: Command) -> dict[str, object]:
    """Command of the SDK 0.226.1."""
    code = command.exit_code()
    return {"id": identifier, "command": command.text, **({} if code is None else {"exitCode": code})}


def server_command(text: str) -> tuple[dict[str, str], str, tuple[str, ...]] | None:
    """Variables, module and arguments of a command of the form `[A=b ...] python -m MODULE ...`; None for others."""
    match = _SERVER.match(text)
    if match is None:
        return None
    try:
        words = shlex.split(match["rest"])
        given = dict(word.partition("=")[::2] for word in shlex.split(match["variables"]))
    except ValueError:
        return None
    return given, words[0], tuple(words[1:])
