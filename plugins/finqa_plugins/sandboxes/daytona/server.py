"""The environment's server inside a sandbox: its start by a session command, its health, its last output."""

from __future__ import annotations

import contextlib
import shlex

import aiohttp
from daytona import AsyncSandbox, DaytonaConflictError, DaytonaError, DaytonaNotFoundError, SessionExecuteRequest

from finqa_cli.errors import SandboxError
from finqa_cli.types import ServerSpec
from finqa_plugins.sandboxes._images.image_recipe import server_command
from finqa_plugins.sandboxes.daytona.daytona_cloud import REQUEST_TIMEOUT_S, Cloud

SESSION = "finqa-server"
PROBE_TIMEOUT_S = 5.0
_TAIL = 2000


class Prober:
    """Requests the health of servers. Logs no address: a signed one gives access to its sandbox."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def status(self, url: str) -> int:
        """HTTP status of a GET; 0 if there is no answer in time."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
            # Uses the same proxy as the SDK and the sessions, if the environment names one.
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=True)
        try:
            async with self._session.get(url, allow_redirects=False) as reply:
                return reply.status
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0

    async def close(self) -> None:
        """Closes the connections. Idempotent."""
        if self._session is not None:
            await self._session.close()


async def start_server(cloud: Cloud, sandbox: AsyncSandbox, spec: ServerSpec) -> str:
    """Starts the server in the background and returns the id of its command.

    If it is sent twice, after a lost reply, the second server finds the port in use and ends.
    """

    async def session() -> None:
        with contextlib.suppress(DaytonaConflictError):  # an earlier try made it
            await sandbox.process.create_session(SESSION, request_timeout=REQUEST_TIMEOUT_S)

    request = SessionExecuteRequest(command=shlex.join(server_command(spec)), run_async=True)
    doing = f"starting the server in sandbox {sandbox.id}"
    try:
        await cloud.call(doing, session)
        reply = await cloud.call(
            doing, lambda: sandbox.process.execute_session_command(SESSION, request, timeout=int(REQUEST_TIMEOUT_S))
        )
    except DaytonaNotFoundError as error:
        raise SandboxError(
            f"Daytona: {doing} failed: the sandbox no longer exists, or its toolbox does not respond."
        ) from error
    return reply.cmd_id


async def exit_code(sandbox: AsyncSandbox, command: str) -> int | None:
    """The exit code of the server; None while it runs, or if it is unknown."""
    try:
        state = await sandbox.process.get_session_command(SESSION, command, request_timeout=REQUEST_TIMEOUT_S)
    except DaytonaError:
        return None
    return None if state.exit_code is None else int(state.exit_code)


async def last_output(cloud: Cloud, sandbox: AsyncSandbox, command: str) -> str:
    """The end of the server's output.

    Raises:
        DaytonaError: The sandbox is gone.
        FinqaError: The output cannot be read.
    """
    logs = await cloud.call(
        f"reading the server's output in sandbox {sandbox.id}",
        lambda: sandbox.process.get_session_command_logs(SESSION, command, request_timeout=REQUEST_TIMEOUT_S),
        patience_s=3.0,
    )
    return (logs.output or f"{logs.stdout or ''}{logs.stderr or ''}").strip()[-_TAIL:]
