"""The `docker` provider: sandboxes as containers of this machine, by docker or podman."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping, Sequence

import structlog

from finqa_cli.contracts import SandboxContext, SandboxProvider
from finqa_cli.errors import ConfigError, FinqaError, SandboxError
from finqa_cli.types import ExecutionSpec, ImageInfo, SandboxInfo, SandboxSpec, ServerSpec
from finqa_plugins.sandboxes.docker.config import DockerSandboxConfig
from finqa_plugins.sandboxes.docker.container_commands import (
    PROVIDER_LABEL,
    Container,
    is_name,
    new_name,
    run_command,
    run_variables,
)
from finqa_plugins.sandboxes.docker.container_engine import Engine, explained, find_engine
from finqa_plugins.sandboxes.docker.docker_images import Images, RunImage
from finqa_plugins.sandboxes.docker.docker_sandbox import DockerSandbox, Watch, ended_at_start

log = structlog.get_logger(__name__)


class DockerSandboxProvider(SandboxProvider):
    """Containers of this machine, one for each sandbox, whose ports are published only on its loopback.

    There is no ledger: a container is created with a name of finqa and the labels of its run, so that `list` and `reap`
    find what a killed process left behind.
    """

    builds_images = True

    def __init__(self, config: DockerSandboxConfig | None, context: SandboxContext) -> None:
        self._config = config or DockerSandboxConfig()
        self._owner = secrets.token_hex(8)
        self._images = Images(self._config)
        self._watch = Watch(self._running)
        self._places = asyncio.Semaphore(context.max_concurrent_create)
        self._engine: Engine | None = None
        self._finding = asyncio.Lock()
        self._starts: set[asyncio.Task[DockerSandbox]] = set()
        self._sandboxes: set[DockerSandbox] = set()
        self._said_why = False
        self._closed = False

    async def start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> DockerSandbox:
        """A new container whose server is healthy. If cancelled, removes the container before returning.

        Raises:
            SandboxError: The container did not become ready and was removed; the message ends with its last output.
            ConfigError: The image does not exist or has no command, or the environment executes code.
            DataError: The image of this environment was not built yet.
            ServiceUnavailableError: The daemon does not answer.
        """
        if self._closed:
            raise SandboxError("The sandbox provider is closed.")
        if isinstance(spec, ExecutionSpec):
            raise ConfigError(
                "Containers run environment servers; this environment executes code of the policy.",
                remedy="--sandbox local, or --sandbox daytona",
            )
        task = asyncio.create_task(self._start(spec, labels))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by `close`; the caller that waits here was not
                raise SandboxError("The sandbox provider is closed.") from None
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and task.exception() is None:
                await task.result().stop()
            raise

    def most_sandboxes(self, spec: SandboxSpec) -> int | None:
        """Return the option `containers`, the limit on this machine."""
        return self._config.containers

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxInfo]:
        """Containers with all these labels, from any process; also those that have ended and were not removed."""
        containers = await (await self._found()).containers(labels)
        return [
            SandboxInfo(id=each.name, state=each.state, labels=each.labels, created=each.created)
            for each in containers
            if is_name(each.name) and labels.items() <= each.labels.items()
        ]

    async def reap(self, sandbox_id: str) -> None:
        """End and remove a container of finqa and return when it is gone; ignore any other name.

        Raises:
            SandboxError: It still exists after some time.
        """
        engine = await self._found()
        if any(info.id == sandbox_id for info in await self.list({})):
            await engine.remove(sandbox_id, self._config.delete_timeout_s)

    async def close(self) -> None:
        """End every container that this object started, and every start in progress.

        Raises:
            SandboxError: Some containers still exist; `finqa sandbox reap` ends them later.
        """
        if self._closed:
            return
        self._closed = True
        for task in self._starts:
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        if self._engine is None:
            return
        stops = await asyncio.gather(*(sandbox.stop() for sandbox in [*self._sandboxes]), return_exceptions=True)
        errors = [error for error in stops if error is not None]
        try:  # a create that took too long may have created its container all the same
            left = await self._engine.containers({PROVIDER_LABEL: self._owner})
            await asyncio.gather(*(self._engine.remove(each.name, self._config.delete_timeout_s) for each in left))
        except FinqaError as error:
            errors.append(error)
        if errors:
            raise SandboxError(
                f"{len(errors)} containers could not be removed; the first: {errors[0]}",
                remedy="finqa sandbox reap --sandbox docker",
            )

    async def build_image(self, spec: ServerSpec, on_log: Callable[[str], None]) -> tuple[ImageInfo, bool]:
        """See `SandboxProvider`."""
        return await self._images.build_image(await self._found(), spec, on_log)

    async def images(self) -> Sequence[ImageInfo]:
        """See `SandboxProvider`."""
        return await self._images.images(await self._found())

    async def delete_images(self, snapshot: str) -> Sequence[str]:
        """See `SandboxProvider`."""
        return await self._images.delete_images(await self._found(), snapshot)

    async def _start(self, spec: ServerSpec, labels: Mapping[str, str]) -> DockerSandbox:
        engine = await self._found()
        image = await self._images.image_of(engine, spec)
        async with self._places:
            name = new_name()
            try:
                container = await self._created(engine, spec, image, name, labels)
                sandbox = DockerSandbox(
                    engine,
                    container,
                    container.ports[spec.port],
                    health_path=spec.health_path,
                    server=image.name,
                    config=self._config,
                    watch=self._watch,
                    end=self._end,
                )
                await sandbox.wait_until_healthy()
            except BaseException:
                await self._undo(engine, name)
                raise
        self._sandboxes.add(sandbox)
        return sandbox

    async def _created(
        self, engine: Engine, spec: ServerSpec, image: RunImage, name: str, labels: Mapping[str, str]
    ) -> Container:
        """The running container. A cancellation waits for the create, whose result shows what to remove."""
        command = run_command(spec, image.id, name, labels, self._owner, self._config)
        variables = run_variables(os.environ, spec)
        creating = asyncio.create_task(
            engine.call(*command, timeout_s=self._config.create_timeout_s, variables=variables)
        )
        try:
            reply = await asyncio.shield(creating)
        except asyncio.CancelledError:
            await asyncio.wait({creating})
            raise
        if reply.code:
            raise explained(reply, engine, image.name, f"starting a container of {image.name}")
        found = await engine.inspect(name)
        if not found or spec.port not in found[0].ports:
            raise await ended_at_start(engine, name, image.name, self._config)
        return found[0]

    async def _undo(self, engine: Engine, name: str) -> None:
        """Remove the container. Never raises: the error of the start is reported, and `close` tries again."""
        try:
            await engine.remove(name, self._config.delete_timeout_s)
        except FinqaError as error:
            # Log: It could not be removed. `finqa sandbox list` shows it.
            log.warning("a container that did not start may still exist", container=name, reason=error.message)

    async def _end(self, sandbox: DockerSandbox) -> None:
        sandbox.ended = True
        if sandbox not in self._sandboxes:
            return
        engine = await self._found()
        if sandbox.sick and not self._closed:
            await self._say_why(sandbox)
        await engine.remove(sandbox.id, self._config.delete_timeout_s)
        self._sandboxes.discard(sandbox)

    async def _say_why(self, sandbox: DockerSandbox) -> None:
        """Log why a server ended, before its logs are gone. Only the first is a warning: all share one reason."""
        try:
            why = await sandbox.why()
        except FinqaError:
            return
        tell = log.info if self._said_why else log.warning
        self._said_why = True
        tell("the server of a sandbox stopped answering", sandbox=sandbox.id, why=why)

    async def _running(self) -> frozenset[str]:
        return await (await self._found()).running({PROVIDER_LABEL: self._owner})

    async def _found(self) -> Engine:
        async with self._finding:
            if self._engine is None:
                self._engine = await find_engine(self._config.command)
            return self._engine
