"""A sandbox in the cloud in which code is executed, by the supervisor that is sent along with each request."""

from __future__ import annotations

import asyncio
import math
import secrets
import shlex
from collections.abc import Awaitable, Callable

from daytona import AsyncSandbox, DaytonaError, DaytonaNotFoundError

from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.errors import ConfigError, FinqaError, SandboxError
from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest, ExecutionResult
from finqa_plugins.sandboxes._execution.calls import command, deadline_s, result
from finqa_plugins.sandboxes.daytona.daytona_cloud import Cloud
from finqa_plugins.sandboxes.daytona.daytona_sandbox import HEALTH_TIMEOUT_S, DaytonaSandboxBase

LONGEST_LINE = 100_000
"""Characters of a command line. Linux takes 131,072 bytes as one argument; more input travels as a file."""
OLDEST_PYTHON = (3, 11)
_END = "FINQA"


class DaytonaExecutingSandbox(DaytonaSandboxBase, ExecutingSandbox):
    """A sandbox of Daytona that executes code.

    Executions take turns. Sandboxes have one virtual CPU unless they are told otherwise, and what two of them could see
    of each other, such as the command lines of processes, does not exist when there is one. One whose caller gave up
    ends by its own limits.
    """

    def __init__(
        self, cloud: Cloud, remote: AsyncSandbox, end: Callable[[DaytonaSandboxBase], Awaitable[None]]
    ) -> None:
        super().__init__(cloud, remote, end)
        self._turn = asyncio.Lock()

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """See `ExecutingSandbox.execute`. A request whose reply was lost is sent again: it starts from nothing."""
        async with self._turn:
            if self.ended:
                raise SandboxError(f"Sandbox {self.id} has been ended.")
            try:
                found = await self._executed(request)
                # What kills the supervisor is the code, or the end of the sandbox: then no answer comes.
                if found.ending is Ending.KILLED and (self.ended or not await self._answers()):
                    raise SandboxError(f"Sandbox {self.id} ended under an execution.")
                return found
            except DaytonaNotFoundError as error:
                raise SandboxError(f"Sandbox {self.id} is gone, or its toolbox does not answer.") from error
            except DaytonaError as error:
                raise SandboxError(f"Sandbox {self.id} does not answer: {error.message}") from error
            except SandboxError:
                raise
            except FinqaError as error:  # such as a sandbox that does not run, which Daytona takes for a bad request
                raise SandboxError(error.message, remedy=error.remedy) from error

    async def prove(self, timeout_s: float) -> None:
        """Shows that code can be executed in it.

        Raises:
            SandboxError: It cannot be.
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
    """A shell command with one line of input, which stands in no process's command line once it runs."""
    return f"exec {line} <<'{_END}'\n{text}\n{_END}\n"
