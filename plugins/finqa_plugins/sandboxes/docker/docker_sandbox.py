"""A container with the server of an environment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from finqa_cli.contracts import ServingSandbox
from finqa_cli.errors import FinqaError, SandboxError
from finqa_plugins.sandboxes._serving.server_health import (
    HEALTH_TIMEOUT_S,
    HOST,
    answers,
    output_sentence,
    wait_until_healthy,
)
from finqa_plugins.sandboxes.docker.config import DockerSandboxConfig
from finqa_plugins.sandboxes.docker.container_commands import Container, ending_of
from finqa_plugins.sandboxes.docker.container_engine import Engine

LISTING_HOLDS_S = 1.0
"""Seconds for which a listing of running containers is used. Each listing starts a program."""

MEMORY_REMEDY = "--set sandbox.options.memory_mib=N gives each container more"


class Watch:
    """Knows which containers of one provider run. All calls within a second share one listing."""

    def __init__(self, list_running: Callable[[], Awaitable[frozenset[str]]]) -> None:
        self._list_running = list_running
        self._running: frozenset[str] = frozenset()
        self._began = float("-inf")
        self._listing = asyncio.Lock()

    async def runs(self, container: str, since: float) -> bool:
        """Whether a container runs that was started at `since`, in seconds of the monotonic clock.

        True if the engine does not answer: then nothing is known about its containers.
        """
        async with self._listing:
            now = time.monotonic()
            if self._began < max(since, now - LISTING_HOLDS_S):
                try:
                    self._running, self._began = await self._list_running(), now
                except FinqaError:
                    return True
            return container in self._running


class DockerSandbox(ServingSandbox):
    """A container with a server. Its id is the name that finqa gave it, as shown by `docker ps`."""

    def __init__(
        self,
        engine: Engine,
        container: Container,
        port: int,
        *,
        health_path: str,
        server: str,
        config: DockerSandboxConfig,
        watch: Watch,
        end: Callable[[DockerSandbox], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._container = container
        self._started = time.monotonic()
        self._port = port
        self._health_path = health_path
        self._server = server
        self._config = config
        self._watch = watch
        self._end = end
        self.ended = False
        self.sick = False

    @property
    def id(self) -> str:
        """`finqa-<12 hex digits>`, the container's name."""
        return self._container.name

    def url(self) -> str:
        """Base address of the published port on this machine's loopback."""
        return f"http://{HOST}:{self._port}"

    async def healthy(self) -> bool:
        """Whether the container runs and its server answers. An answer alone may come from a later user of the port."""
        if self.ended:
            return False
        good = await self._answers(HEALTH_TIMEOUT_S) and await self._watch.runs(self._container.id, self._started)
        self.sick = not good
        return good and not self.ended

    async def stop(self) -> None:
        """End and remove the container.

        Raises:
            SandboxError: The container still exists after a while; another call tries again.
        """
        await self._end(self)

    async def wait_until_healthy(self) -> None:
        """Wait until the server first answers with status 200.

        Raises:
            SandboxError: The container ended, or its server took too long; the message ends with its last output.
        """

        async def ended() -> SandboxError | None:
            if await self._watch.runs(self._container.id, self._started):
                return None
            return await ended_at_start(self._engine, self._container.name, self._server, self._config)

        async def last_output() -> str:
            return output_sentence(await self._engine.last_output(self.id))

        await wait_until_healthy(
            self._server, self._config.start_timeout_s, healthy=self._answers, ended=ended, last_output=last_output
        )

    async def why(self) -> str:
        """The container's state and the end of its output, in sentences."""
        found = await self._engine.inspect(self.id)
        state = "is gone" if not found else "runs" if found[0].state == "started" else _ending(found[0], self._config)
        return f"The container {state}. {output_sentence(await self._engine.last_output(self.id))}"

    async def _answers(self, timeout_s: float) -> bool:
        return await answers(self._port, self._health_path, timeout_s)


async def ended_at_start(engine: Engine, name: str, server: str, config: DockerSandboxConfig) -> SandboxError:
    """The error for a container that ended before its server answered."""
    found = await engine.inspect(name)
    if not found:
        return SandboxError(f"The container of {server} disappeared at start.")
    ending = _ending(found[0], config)
    output = output_sentence(await engine.last_output(name))
    remedy = MEMORY_REMEDY if "memory" in ending else ""
    return SandboxError(f"The container of {server} {ending} at start. {output}", remedy=remedy)


def _ending(container: Container, config: DockerSandboxConfig) -> str:
    return ending_of(container, config.memory_mib)
