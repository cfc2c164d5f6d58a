"""Starts the process with the library, exchanges requests with it, and ends it with this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from finqa_cli.errors import ConfigError, EnvironmentFault, MissingDependencyError, SandboxError
from finqa_cli.masking import without_secrets
from finqa_interop.config import LibraryConfig

PACKAGES = {"verifiers": ("verifiers", "verifiers>=0.1.14,<0.3"), "inspect": ("inspect_ai", "inspect_ai>=0.3.280")}
"""Import name and requirement of each library."""

_FOLDER = Path(__file__).parent / "host_path"
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from finqa_host.library_host import run; run()"
_LONGEST_LINE = 2**28
_LOAD_TIMEOUT_S = 600.0
_LAST_LINES = 5


def load(config: LibraryConfig) -> dict[str, Any]:
    """Return the tasks of an environment and the version of its library, from a process that then ends.

    Raises:
        ConfigError: The environment cannot be loaded or cannot be run here; the message has the reason.
        MissingDependencyError: The interpreter does not have the library.
    """
    return _load(_command(config), config.library, config.source)


@lru_cache(maxsize=8)
def _load(command: tuple[str, ...], library: str, source: str) -> dict[str, Any]:
    asked = json.dumps({"id": 1, "op": "load"}) + "\n"
    try:
        ended = subprocess.run(
            command,
            input=asked,
            capture_output=True,
            text=True,
            timeout=_LOAD_TIMEOUT_S,
            check=False,
            env=without_secrets(os.environ),
        )
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be started: {error}", remedy=_python_remedy()) from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{library}:{source} was not loaded within {_LOAD_TIMEOUT_S:g} s.") from error
    replies = [json.loads(line) for line in ended.stdout.splitlines()]
    if len(replies) == 2 and "error" not in replies[1]:
        return dict(replies[1])
    _check_library(command[0], library, ended.stderr)
    found = next((reply for reply in replies if "error" in reply), {"error": _tail(ended.stderr)})
    verb = "cannot be played" if found.get("refused") else "cannot be loaded"
    raise ConfigError(
        f"{library}:{source} {verb}: {found['error']}",
        remedy=found.get("remedy")
        or f"correct {source}, or its arguments: --set environment.options.arguments={{...}}",
    )


class HostProcess:
    """Sends requests to a running process; those of all sessions run concurrently.

    The process runs until `close`, or until this process ends, which closes its stdin.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: IO[bytes], timeout_s: float) -> None:
        """Read the replies of the process in the current event loop; use `start` instead."""
        self._process = process
        self._log = log
        self._timeout_s = timeout_s
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._asked = 0
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, config: LibraryConfig) -> HostProcess:
        """Start the process and wait until it has loaded the environment.

        Raises:
            SandboxError: The process ended.
            EnvironmentFault: The environment was not loaded, or not in time.
        """
        log = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        process = await asyncio.create_subprocess_exec(
            *_command(config),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=_LONGEST_LINE,
            env=without_secrets(os.environ),
        )
        host = cls(process, log, config.call_timeout_s)
        ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        host._waiting[0] = ready
        await host._answer(ready, _LOAD_TIMEOUT_S)
        return host

    @property
    def alive(self) -> bool:
        """Whether the process runs, and this event loop reads its replies."""
        own = self._reading.get_loop() is asyncio.get_running_loop()
        return own and self._process.returncode is None and not self._reading.done()

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Return the reply to a request.

        Raises:
            EnvironmentFault: The library or the environment raised an exception, or did not answer in time.
            SandboxError: The process has ended.
        """
        self._asked += 1
        number = self._asked
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"id": number, "op": op, **fields}).encode() + b"\n")
            await self._process.stdin.drain()
            return await self._answer(future, self._timeout_s)
        except (ConnectionError, RuntimeError) as error:
            raise SandboxError(f"The process of the environment has ended: {self._end()}") from error
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End the process. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._log.close()

    async def _answer(self, future: asyncio.Future[dict[str, Any]], timeout_s: float) -> dict[str, Any]:
        try:
            reply = await asyncio.wait_for(future, timeout_s)
        except TimeoutError as error:
            raise EnvironmentFault(
                f"The environment did not answer within {timeout_s:g} s.",
                remedy="--set environment.options.call_timeout_s=SECONDS",
            ) from error
        if "error" in reply:
            raise EnvironmentFault(f"The environment failed: {reply['error']}", remedy=reply.get("remedy", ""))
        return reply

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            reply = json.loads(line)
            future = self._waiting.get(reply.pop("id"))
            if future is not None and not future.done():
                future.set_result(reply)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(SandboxError(f"The process of the environment has ended: {self._end()}"))

    def _end(self) -> str:
        if self._log.closed:
            return "it was closed"
        self._log.seek(0)
        return _tail(self._log.read().decode("utf-8", "replace"))


def _command(config: LibraryConfig) -> tuple[str, ...]:
    python = str(config.python.expanduser()) if config.python is not None else sys.executable
    arguments = json.dumps(dict(config.arguments), sort_keys=True)
    return (python, "-c", _START, str(_FOLDER), config.library, config.source, arguments)


def _check_library(python: str, library: str, said: str) -> None:
    name, requirement = PACKAGES[library]
    if f"No module named '{name}'" in said:
        raise MissingDependencyError(
            f"{python} does not have {name}.",
            remedy=f"pip install 'finqa[{library}]', or pip install '{requirement}' in an environment of its own and "
            f"{_python_remedy()}",
        )


def _python_remedy() -> str:
    return "--set environment.options.python=PATH/bin/python"


def _tail(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-_LAST_LINES:]) or "it said nothing"
