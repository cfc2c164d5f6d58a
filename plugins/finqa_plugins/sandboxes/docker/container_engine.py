"""Finds and calls the program that runs containers, docker or podman."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from finqa_cli.errors import ConfigError, FinqaError, MissingDependencyError, SandboxError, ServiceUnavailableError
from finqa_plugins.sandboxes.docker.config import INSTALL_REMEDY, PROGRAMS, program_variables
from finqa_plugins.sandboxes.docker.container_commands import (
    Container,
    listing_command,
    parse_containers,
    remove_command,
)

REQUEST_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 30.0
"""Seconds for a first answer: podman does not answer while it stores a large layer of an image."""
DOCTOR_REMEDY = "finqa doctor --sandbox docker"
_POLL_S = 0.2
_INSPECTIONS = 3
_ENDING = "no such process"
"""podman reports this if a container's process ends while it is inspected. A repeated call shows the end."""
_AT_ONCE = 16
"""Simultaneous calls; each is a process of about 30 MB."""
_LINE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a call.

    Attributes:
        code: The exit code.
        out: What was written to stdout, for `merged` calls also to stderr.
        err: What was written to stderr; empty for `merged` calls.
    """

    code: int
    out: str
    err: str = ""

    @property
    def reason(self) -> str:
        """The error in one line."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        told = [line for line in lines if "rror" in line] or lines
        return " ".join(told)[:500] or f"it ended with code {self.code}"


class Engine:
    """docker or podman on this machine."""

    def __init__(self, program: str, *, podman: bool, version: str) -> None:
        self.program = program
        self.podman = podman
        self.version = version
        self._places = asyncio.Semaphore(_AT_ONCE)

    @property
    def name(self) -> str:
        """Its name in messages and remedies."""
        return "podman" if self.podman else "docker"

    async def call(
        self,
        *arguments: str,
        timeout_s: float = REQUEST_TIMEOUT_S,
        variables: Mapping[str, str] | None = None,
        merged: bool = False,
        on_line: Callable[[str], None] | None = None,
    ) -> Reply:
        """Run the program to its end. A cancellation ends the program, but not what a daemon does for it.

        Args:
            arguments: Its arguments.
            timeout_s: Seconds that it may take.
            variables: Its environment; by default that of this process without the secrets of other programs.
            merged: Whether stdout and stderr are one text, in the order of writing.
            on_line: Receives that text line by line; it implies `merged`, and `out` is only the end of the text.

        Raises:
            SandboxError: The program cannot be started, or took too long.
        """
        async with self._places:
            return await _call((self.program, *arguments), timeout_s, variables, merged or on_line is not None, on_line)

    async def containers(self, labels: Mapping[str, str]) -> Sequence[Container]:
        """Finqa's containers with all these labels, also those that have ended.

        Raises:
            SandboxError: The engine does not answer.
        """
        ids = await self._ids(listing_command(labels))
        return await self.inspect(*ids) if ids else ()

    async def running(self, labels: Mapping[str, str]) -> frozenset[str]:
        """Ids of the running containers with all these labels.

        Raises:
            SandboxError: The engine does not answer.
        """
        return frozenset(await self._ids(listing_command(labels, running=True)))

    async def inspect(self, *containers: str) -> Sequence[Container]:
        """The existing containers with these names or ids.

        Raises:
            SandboxError: The engine does not answer.
        """
        for attempt in range(_INSPECTIONS):
            reply = await self.call("container", "inspect", *containers)
            if not (reply.code and _ENDING in reply.err):
                break
            await asyncio.sleep(_POLL_S * (attempt + 1 < _INSPECTIONS))
        if reply.code and not reply.out.strip():
            raise self._failed("looking for containers", reply)
        return parse_containers(reply.out)

    async def last_output(self, container: str) -> str:
        """The end of a container's output; empty if it cannot be read."""
        with contextlib.suppress(SandboxError):
            reply = await self.call("logs", "--tail=40", container, merged=True)
            return reply.out if not reply.code else ""
        return ""

    async def remove(self, container: str, timeout_s: float) -> None:
        """End and remove a container, and return when it is gone. Idempotent.

        Raises:
            SandboxError: The container still exists after some time.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            reply = await self.call(*remove_command(container, podman=self.podman), timeout_s=timeout_s)
            if not reply.code or not await self.inspect(container):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise self._failed(f"ending container {container}", reply)
            await asyncio.sleep(_POLL_S)

    async def _ids(self, command: Sequence[str]) -> Sequence[str]:
        reply = await self.call(*command)
        if reply.code:
            raise self._failed("listing the containers", reply)
        return reply.out.split()

    def _failed(self, doing: str, reply: Reply) -> SandboxError:
        return SandboxError(f"{self.name}: {doing} failed: {reply.reason}", remedy=DOCTOR_REMEDY)


async def find_engine(command: str) -> Engine:
    """The program that the option names, else docker if its daemon answers, else podman.

    Raises:
        MissingDependencyError: No program is installed.
        ConfigError: The option names a program that does not exist.
        ServiceUnavailableError: A program is installed but does not answer.
    """
    installed = [path for program in ([command] if command else PROGRAMS) if (path := shutil.which(program))]
    if not installed:
        if command:
            raise ConfigError(f"There is no program {command}.", remedy=_other_program())
        raise MissingDependencyError(
            "Containers need docker or podman, and neither is installed.", remedy=INSTALL_REMEDY
        )
    silent: list[str] = []
    for path in installed:
        try:
            version = await _call((path, "--version"), PROBE_TIMEOUT_S)
            engine = Engine(path, podman="podman" in version.out.lower(), version=_number(version.out))
            reply = await engine.call("ps", "--quiet", timeout_s=PROBE_TIMEOUT_S)
        except SandboxError as error:
            silent.append(error.message)
            continue
        if not reply.code:
            return engine
        silent.append(f"{engine.name} does not answer: {reply.reason}")
    raise ServiceUnavailableError(f"No container can be started. {' '.join(silent)}", remedy=_daemon_remedy())


def _daemon_remedy() -> str:
    """Return what starts docker's daemon with the programs of this machine, and what needs none."""
    podman = "--set sandbox.options.command=podman" if shutil.which("podman") else "sudo apt-get install podman"
    if not shutil.which("docker"):
        return "podman info, which shows the reason"
    if shutil.which("systemctl"):
        return f"sudo systemctl start docker, or {podman}"
    return f"sudo dockerd, or {podman}" if shutil.which("dockerd") else podman


def _other_program() -> str:
    if shutil.which("docker"):
        return "--set sandbox.options.command=docker"
    return "--set sandbox.options.command=podman" if shutil.which("podman") else INSTALL_REMEDY


def _number(version: str) -> str:
    """`Docker version 28.2.2, build e6534b4` -> `28.2.2`."""
    return next((word.rstrip(",") for word in version.split() if word[:1].isdigit()), "?")


async def _call(
    argv: Sequence[str],
    timeout_s: float,
    variables: Mapping[str, str] | None = None,
    merged: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> Reply:
    """Run a program in its own session, so that Ctrl-C at the terminal reaches only this process."""
    doing = " ".join(argv[:2])
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if merged else asyncio.subprocess.PIPE,
            env=program_variables(os.environ) if variables is None else variables,
            start_new_session=True,
            limit=_LINE_BYTES,
        )
    except OSError as error:
        raise SandboxError(f"{doing} cannot be started: {error.strerror}", remedy=DOCTOR_REMEDY) from error
    try:
        async with asyncio.timeout(timeout_s):
            if on_line is None:
                out, err = await process.communicate()
            else:
                out, err = await _follow(process, on_line), None
                await process.wait()
    except TimeoutError as error:
        raise SandboxError(f"{doing} took longer than {timeout_s:g} s.", remedy=DOCTOR_REMEDY) from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return Reply(process.returncode or 0, out.decode("utf-8", "replace"), (err or b"").decode("utf-8", "replace"))


async def _follow(process: asyncio.subprocess.Process, on_line: Callable[[str], None]) -> bytes:
    """Pass the output on line by line; return its last lines."""
    last: list[bytes] = []
    assert process.stdout is not None
    async for line in process.stdout:
        if text := line.decode("utf-8", "replace").rstrip():
            last = [*last[-19:], line]
            on_line(text)
    return b"".join(last)


def explained(reply: Reply, engine: Engine, image: str, doing: str) -> FinqaError:
    """The error for a container that could not be started. Exit codes 126 and 127: the command cannot be executed."""
    if "No such image" in reply.err or "image not known" in reply.err:
        return missing_image(engine, image)
    if reply.code in (126, 127):
        return ConfigError(
            f"The image {image} has no command that can be started: {reply.reason}",
            remedy="name a command that serves (ENTRYPOINT or CMD) in the image's Dockerfile",
        )
    return SandboxError(f"{engine.name}: {doing} failed: {reply.reason}", remedy=DOCTOR_REMEDY)


def missing_image(engine: Engine, image: str, reason: str = "") -> ConfigError:
    """The error for an image that is neither on this machine nor pulled."""
    told = f", and pulling it failed: {reason}" if reason else "."
    return ConfigError(
        f"There is no image {image} on this machine{told}",
        remedy=f"{engine.name} pull {image}, or {engine.name} build --tag {image} FOLDER",
    )
