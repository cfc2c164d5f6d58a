"""Sandboxes in the cloud, and those of them in which a server runs."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable

from daytona import AsyncSandbox, DaytonaError

from finqa_cli.contracts import Sandbox, ServingSandbox
from finqa_cli.errors import FinqaError, SandboxError
from finqa_cli.types import ServerSpec
from finqa_plugins.sandboxes.daytona.daytona_cloud import REQUEST_TIMEOUT_S, Cloud
from finqa_plugins.sandboxes.daytona.server import Prober, exit_code, last_output

HEALTH_TIMEOUT_S = 8.0
_FIRST_POLL_S, _LONGEST_POLL_S = 0.1, 1.0
_LOOK_S = 1.5
"""Seconds between looks at why a server does not answer yet."""
OUT_OF_REACH_S, _PROBE_PAUSE_S = 3.0, 0.5
"""How long a server may be out of reach before it counts as silent: what fails may be Daytona's proxy, in front of all
sandboxes at once, while it is restarted."""
URL_MARGIN = 0.8
"""Share of an address's life after which it is replaced."""
_REFUSED = (301, 302, 303, 307, 308, 400, 401, 403, 404, 410)
"""What Daytona's proxy answers when an address has expired or the sandbox's token has changed: 400 with a page, or a
way to its login (daytonaio/daytona #3891, #4117)."""


class DaytonaSandboxBase(Sandbox):
    """What sandboxes of both kinds have in common.

    Attributes:
        remote: The SDK's object.
        ended: True once it must not be used any more.
        sick: It did not answer when last asked.
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
        """The name that it was asked for with."""
        return self.remote.name

    async def healthy(self) -> bool:
        """True when it answers. Never raises."""
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
        """Whether it does what it is for. Raises DaytonaError and FinqaError."""

    async def stop(self) -> None:
        """Deletes the sandbox and returns when it is gone.

        Raises:
            SandboxError: It is still there after a while; `finqa sandbox reap` ends it later.
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
        """What is asked for the server's health."""
        return self._url + self._spec.health_path

    def url(self) -> str:
        """A signed address, valid for a while. Ask again for each new session: it is renewed before it expires."""
        return self._url

    async def renew_url(self, instead_of: str | None = None) -> None:
        """Gets a fresh address, unless another caller has just replaced `instead_of`.

        Raises:
            DaytonaError: The sandbox is gone.
            FinqaError: Daytona does not give one.
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
        """Whether the server does; an address that is refused is renewed and asked once more."""
        url = self._url
        status = await self._prober.status(self.health_url)
        if status in _REFUSED:
            await self.renew_url(instead_of=url)
            status = await self._prober.status(self.health_url)
        return status == 200

    async def wait_until_healthy(self, timeout_s: float) -> None:
        """Gets an address and waits for the server's first good answer.

        Raises:
            SandboxError: It exited or took too long; the message ends with what it last wrote.
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
        """The end of what its server wrote.

        Raises:
            DaytonaError: The sandbox is gone.
            FinqaError: It cannot be read.
        """
        return await last_output(self._cloud, self.remote, self.command)

    async def _ending(self) -> str:
        """Its last output as the end of an error message."""
        try:
            text = await self.output()
        except (DaytonaError, FinqaError) as error:
            return f"Its output could not be read: {getattr(error, 'message', error)}"
        return f"Its last output:\n{text}" if text else "It wrote nothing."
