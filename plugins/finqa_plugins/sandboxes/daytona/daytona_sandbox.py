"""Sandboxes in the Daytona cloud that run a server or execute code.

The supervisor, which executes the code, is sent with each request.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import shlex
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable

from daytona import AsyncSandbox, DaytonaError, DaytonaNotFoundError

from finqa_cli.contracts import ExecutingSandbox, Sandbox, ServingSandbox
from finqa_cli.errors import ConfigError, FinqaError, SandboxError
from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest, ExecutionResult, ServerSpec
from finqa_plugins.sandboxes._execution.calls import command, deadline_s, result
from finqa_plugins.sandboxes.daytona.daytona_cloud import REQUEST_TIMEOUT_S, Cloud
from finqa_plugins.sandboxes.daytona.server import Prober, exit_code, last_output

HEALTH_TIMEOUT_S = 8.0
_FIRST_POLL_S, _LONGEST_POLL_S = 0.1, 1.0
_LOOK_S = 1.5
"""Seconds between checks whether a server that does not answer yet has exited."""
OUT_OF_REACH_S, _PROBE_PAUSE_S = 3.0, 0.5
"""Seconds that a server may be out of reach before it counts as unresponsive, and between probes: Daytona's proxy,
which is in front of all sandboxes, may be restarting."""
URL_MARGIN = 0.8
"""Share of an address's lifetime after which it is replaced."""
_REFUSED = (301, 302, 303, 307, 308, 400, 401, 403, 404, 410)
"""What Daytona's proxy answers if an address has expired or the sandbox's token has changed: 400 with a page, or a
redirect to its login (daytonaio/daytona #3891, #4117)."""


LONGEST_LINE = 100_000
"""Characters of a command line; longer input is sent as a file. Linux takes 131,072 bytes as one argument."""
OLDEST_PYTHON = (3, 11)
_END = "FINQA"


class DaytonaSandboxBase(Sandbox):
    """What sandboxes of both kinds have in common.

    Attributes:
        remote: The SDK's object of the sandbox.
        ended: Whether it must not be used any more.
        sick: Whether it did not answer when last checked.
    """

    def __init__(
        self, cloud: Cloud, remote: AsyncSandbox, end: Callable[[DaytonaSandboxBase], Awaitable[None]]
    ) -> None:
        self.remote = remote
        self.ended = False
        self.sick = False
        self._cloud = cloud
        self._end = end

    @property
    def id(self) -> str:
        """Daytona's id."""
        return self.remote.id

    @property
    def name(self) -> str:
        """The name with which it was requested."""
        return self.remote.name

    async def healthy(self) -> bool:
        """Whether it answers. Never raises."""
        if self.ended:
            return False
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                self.sick = not await self._answers()
        except (DaytonaError, FinqaError, TimeoutError):
            self.sick = True
        return not (self.sick or self.ended)

    @abstractmethod
    async def _answers(self) -> bool:
        """Whether its server answers, or whether it executes commands. Raises DaytonaError and FinqaError."""

    async def stop(self) -> None:
        """Deletes the sandbox and returns when it is gone.

        Raises:
            SandboxError: It still exists after a while; `finqa sandbox reap` ends it later.
        """
        await self._end(self)


class DaytonaSandbox(DaytonaSandboxBase, ServingSandbox):
    """A sandbox with a server.

    Attributes:
        command: Id of the session command that runs the server.
        renew_at: When its address should be replaced, in seconds of the monotonic clock.
    """

    def __init__(
        self,
        cloud: Cloud,
        prober: Prober,
        remote: AsyncSandbox,
        spec: ServerSpec,
        *,
        command: str,
        url_ttl_s: int,
        end: Callable[[DaytonaSandboxBase], Awaitable[None]],
    ) -> None:
        super().__init__(cloud, remote, end)
        self.command = command
        self.renew_at = 0.0
        self._prober = prober
        self._spec = spec
        self._url_ttl_s = url_ttl_s
        self._url = ""
        self._renewing = asyncio.Lock()

    @property
    def health_url(self) -> str:
        """Address of the server's health check."""
        return self._url + self._spec.health_path

    def url(self) -> str:
        """A signed address with a limited lifetime. Read it again for each session: it is renewed in time."""
        return self._url

    async def renew_url(self, instead_of: str | None = None) -> None:
        """Gets a new address, unless another caller has already replaced `instead_of`.

        Raises:
            DaytonaError: The sandbox is gone.
            FinqaError: Daytona returns none.
        """
        async with self._renewing:
            if instead_of is not None and self._url != instead_of:
                return
            asked = time.monotonic()
            signed = await self._cloud.call(
                f"getting an address of sandbox {self.id}",
                lambda: self.remote.create_signed_preview_url(
                    self._spec.port, expires_in_seconds=self._url_ttl_s, request_timeout=REQUEST_TIMEOUT_S
                ),
            )
            self._url = signed.url.rstrip("/")
            self.renew_at = asked + URL_MARGIN * self._url_ttl_s

    async def _answers(self) -> bool:
        until = time.monotonic() + OUT_OF_REACH_S
        while not await self._answers_now():
            if time.monotonic() > until or await exit_code(self.remote, self.command) is not None:
                return False
            await asyncio.sleep(_PROBE_PAUSE_S)
        return True

    async def _answers_now(self) -> bool:
        """Whether the server answers; a refused address is renewed and tried once more."""
        url = self._url
        status = await self._prober.status(self.health_url)
        if status in _REFUSED:
            await self.renew_url(instead_of=url)
            status = await self._prober.status(self.health_url)
        return status == 200

    async def wait_until_healthy(self, timeout_s: float) -> None:
        """Gets an address and waits until the server first answers with status 200.

        Raises:
            SandboxError: The server exited or took too long; the message ends with its last output.
            DaytonaError: The sandbox is gone.
        """
        await self.renew_url()
        deadline = time.monotonic() + timeout_s
        look_at = time.monotonic() + _LOOK_S
        pause = _FIRST_POLL_S
        while (status := await self._prober.status(self.health_url)) != 200:
            now = time.monotonic()
            if now > deadline:
                answer = f"answered {status}" if status else "did not answer"
                raise SandboxError(
                    f"The server in sandbox {self.id} {answer} for {timeout_s:g} s. {await self._ending()}"
                )
            if now > look_at:
                if (code := await exit_code(self.remote, self.command)) is not None:
                    raise SandboxError(f"The server in sandbox {self.id} exited with {code}. {await self._ending()}")
                if status in _REFUSED:
                    await self.renew_url()
                look_at = now + _LOOK_S
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL_S)

    async def output(self) -> str:
        """The end of its server's output.

        Raises:
            DaytonaError: The sandbox is gone.
            FinqaError: The output cannot be read.
        """
        return await last_output(self._cloud, self.remote, self.command)

    async def _ending(self) -> str:
        """Its last output as the end of an error message."""
        try:
            text = await self.output()
        except (DaytonaError, FinqaError) as error:
            return f"Its output could not be read: {getattr(error, 'message', error)}"
        return f"Its last output:\n{text}" if text else "It wrote nothing."


class DaytonaExecutingSandbox(DaytonaSandboxBase, ExecutingSandbox):
    """A sandbox of Daytona that executes code.

    It executes one request at a time: by default a sandbox has one virtual CPU, and executions side by side could see
    each other, for example the command lines of processes. If the caller gives up, the execution ends by its own
    limits.
    """

    def __init__(
        self, cloud: Cloud, remote: AsyncSandbox, end: Callable[[DaytonaSandboxBase], Awaitable[None]]
    ) -> None:
        super().__init__(cloud, remote, end)
        self._turn = asyncio.Lock()

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """See `ExecutingSandbox.execute`. A request whose reply was lost is sent again: each starts in a new folder."""
        async with self._turn:
            if self.ended:
                raise SandboxError(f"Sandbox {self.id} has been ended.")
            try:
                found = await self._executed(request)
                # The supervisor was killed by the code, or by the end of the sandbox; then the sandbox does not answer.
                if found.ending is Ending.KILLED and (self.ended or not await self._answers()):
                    raise SandboxError(f"Sandbox {self.id} ended during an execution.")
                return found
            except DaytonaNotFoundError as error:
                raise SandboxError(f"Sandbox {self.id} no longer exists, or its toolbox does not respond.") from error
            except DaytonaError as error:
                raise SandboxError(f"Sandbox {self.id} does not answer: {error.message}") from error
            except SandboxError:
                raise
            except FinqaError as error:  # for example for a stopped sandbox, which Daytona reports as a bad request
                raise SandboxError(error.message, remedy=error.remedy) from error

    async def prove(self, timeout_s: float) -> None:
        """Check that the sandbox can execute code.

        Raises:
            SandboxError: It cannot.
            ConfigError: The Python of its image is too old.
        """
        oldest = ".".join(map(str, OLDEST_PYTHON))
        check = f"import sys; sys.exit(sys.version_info < {OLDEST_PYTHON})"
        limits = ExecutionLimits(cpu_s=math.ceil(timeout_s), wall_s=timeout_s)
        found = await self.execute(ExecutionRequest(argv=(PYTHON, "-I", "-c", check), limits=limits))
        if found.exit_code == 1:
            raise ConfigError(
                f"The Python of the image of sandbox {self.id} is older than {oldest}.",
                remedy=f"--set sandbox.options.execution_image=... with Python {oldest} or newer",
            )
        if found.exit_code != 0:
            said = found.stderr[-300:].decode("utf-8", "replace").strip()
            raise SandboxError(f"Python does not start in sandbox {self.id}: {found.ending}. {said}".strip())

    async def _executed(self, request: ExecutionRequest) -> ExecutionResult:
        argv, stdin = command(request)
        line = _with_input(shlex.join(argv), stdin.decode("ascii"))
        doing = f"executing code in sandbox {self.id}"
        if len(line) > LONGEST_LINE:
            path = f"/tmp/finqa-{secrets.token_hex(8)}.json"
            await self._cloud.call(doing, lambda: self.remote.fs.upload_file(stdin, path, deadline_s(request)))
            # The shell has the file open before it is removed, so that the code itself never sees it.
            line = f"{{ rm -f {path}; exec {shlex.join(argv)}; }} < {path}"
        reply = await self._cloud.call(doing, lambda: self.remote.process.exec(line, timeout=deadline_s(request)))
        return result(reply.result.encode(), int(reply.exit_code), request)

    async def _answers(self) -> bool:
        return (await self.remote.process.exec("true", timeout=math.ceil(HEALTH_TIMEOUT_S))).exit_code == 0


def _with_input(line: str, text: str) -> str:
    """A shell command with one line of input, which is in no process's command line while the command runs."""
    return f"exec {line} <<'{_END}'\n{text}\n{_END}\n"
