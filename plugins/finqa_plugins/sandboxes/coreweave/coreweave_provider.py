"""The `cwsandbox` provider: sandboxes in CoreWeave's sandbox service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

import structlog
from cwsandbox import CWSandboxError, Sandbox, SandboxStatus

from finqa_cli.contracts import SandboxContext, SandboxProvider
from finqa_cli.errors import ConfigError, FinqaError, SandboxError
from finqa_cli.types import ExecutionSpec, SandboxInfo, SandboxSpec
from finqa_plugins.sandboxes.coreweave.config import KEY_VARIABLE, CoreWeaveSandboxConfig, mapped
from finqa_plugins.sandboxes.coreweave.coreweave_cloud import Cloud, check_key
from finqa_plugins.sandboxes.coreweave.coreweave_errors import is_refusal
from finqa_plugins.sandboxes.coreweave.coreweave_sandbox import CoreWeaveSandbox
from finqa_plugins.sandboxes.coreweave.tags import (
    OURS,
    creation_tags,
    is_name,
    labels_in,
    name_in,
    new_name,
    search_tags,
)

log = structlog.get_logger(__name__)

LAST_LOOK_S, FIRST_LOOK_S = 5.0, 10.0
SEARCH_PAUSES_S = (0.0, 0.5, 2.0)
"""Pauses before each search for a sandbox whose create was never answered: the list may lag behind."""
SEARCH_PATIENCE_S = 5.0
_STATES = {
    SandboxStatus.RUNNING: "started",
    SandboxStatus.PENDING: "starting",
    SandboxStatus.CREATING: "starting",
    SandboxStatus.PREPARING: "starting",
    SandboxStatus.FAILED: "error",
}


class Creation:
    """Creates one sandbox and waits until it runs. On failure or cancellation it ends the sandbox if there is one.

    Attributes:
        doubtful: Whether, after a failure, a sandbox of this name may exist all the same.
    """

    def __init__(self, cloud: Cloud, config: CoreWeaveSandboxConfig, name: str, tags: Sequence[str]) -> None:
        self._cloud = cloud
        self._config = config
        self._name = name
        self._tags = tags
        self._given_up = False
        self.doubtful = False

    async def run(self) -> Sandbox:
        """The running sandbox.

        Raises:
            SandboxError: It did not become ready.
            FinqaError: No try can succeed, because of the key, the quota, the image or the size.
        """
        sandbox = await self._cloud.prepare(self._tags)
        creating = asyncio.create_task(self._create(sandbox))
        try:
            await asyncio.shield(creating)
            doing = f"starting sandbox {self._name}"
            # `sandbox.wait` would block the event loop.
            await self._cloud.call(doing, lambda: sandbox, self._config.start_timeout_s)
            if (
                sandbox.status is not SandboxStatus.RUNNING
            ):  # the SDK raises nothing for a sandbox that has ended without an error
                raise SandboxError(f"Sandbox {self._name} was {sandbox.status} as soon as it had started.")
        except BaseException:
            self._given_up = True
            # A create in progress is not cut: its answer shows what there is to end.
            await asyncio.wait({creating})
            if not creating.cancelled():
                creating.exception()  # reported already, or no longer relevant
            await self._undo(sandbox)
            raise
        return sandbox

    async def _create(self, sandbox: Sandbox) -> None:
        """Create the sandbox. All tries have the same request id, so that the service makes only one sandbox."""

        async def accepted() -> None:
            if self._given_up:
                raise SandboxError(f"Sandbox {self._name} is not wanted any more.")
            try:
                await sandbox.start()
            except CWSandboxError as error:
                self.doubtful = not is_refusal(error)
                raise
            self.doubtful = False

        await self._cloud.call(f"creating sandbox {self._name}", accepted, self._config.create_timeout_s)

    async def _undo(self, sandbox: Sandbox) -> None:
        """End the sandbox if there is one. Never raises: the error of the start is the one to report."""
        try:
            if sandbox.sandbox_id is not None:
                self.doubtful = True
                await self._cloud.end(sandbox, self._name)
                self.doubtful = False
            elif self.doubtful:
                self.doubtful = not await self._search()
        except FinqaError as error:
            # Log: The provider could not be reached to end it. `finqa sandbox list` shows it.
            log.warning("a sandbox that did not start may still exist", sandbox=self._name, reason=error.message)

    async def _search(self) -> bool:
        """Search for the sandbox by its name and end it; whether it was found."""
        for pause_s in SEARCH_PAUSES_S:
            await asyncio.sleep(pause_s)
            found = await self._cloud.find([self._name], SEARCH_PATIENCE_S)
            for sandbox in found:
                await self._cloud.end(sandbox, self._name)
            if found:
                return True
        return False


class CoreWeaveSandboxProvider(SandboxProvider):
    """Sandboxes of CoreWeave, all of which execute code.

    A sandbox is created with a name of finqa and the labels of its run as tags, so that `list` and `reap` find what a
    lost reply or a killed process left behind.
    """

    def __init__(self, config: CoreWeaveSandboxConfig | None, context: SandboxContext) -> None:
        self._config = config or CoreWeaveSandboxConfig()
        self._cloud = Cloud(self._config)
        self._places = asyncio.Semaphore(context.max_concurrent_create)
        self._sandboxes: set[CoreWeaveSandbox] = set()
        self._doubtful: set[str] = set()
        self._reached = False
        self._first_look = asyncio.Lock()
        self._closed = False

    def check_key(self) -> None:
        """Raise an AuthenticationError if there is no key."""
        check_key(self._config)

    async def start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> CoreWeaveSandbox:
        """A running sandbox, or with `fresh` one that its first execution creates. If cancelled, nothing is left.

        Raises:
            SandboxError: The sandbox did not become ready and was removed, or the service cannot be reached.
            ConfigError: The environment needs a server; the image or the size is refused.
            AuthenticationError: The key is missing or refused.
            ServiceUnavailableError: The account's quota is used up.
        """
        if self._closed:
            raise SandboxError("The sandbox provider is closed.")
        if not isinstance(spec, ExecutionSpec):
            raise ConfigError(
                "Sandboxes of CoreWeave execute code; this environment needs one that serves it.",
                remedy="--sandbox local, or --sandbox daytona",
            )
        await self._cloud.access()
        name = new_name()

        async def make(problem: str) -> Sandbox:
            return await self._made(name, creation_tags(name, labels, problem))

        sandbox = CoreWeaveSandbox(name, self._cloud, make, self._sandboxes.discard)
        self._sandboxes.add(sandbox)
        try:
            await (self._look() if spec.fresh else sandbox.ready())
        except BaseException:
            await sandbox.stop()
            raise
        return sandbox

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxInfo]:
        """Sandboxes with all these labels that have not ended, from any machine."""
        found = ((sandbox, name_in(sandbox.tags)) for sandbox in await self._cloud.find(search_tags(labels)))
        return [_described(sandbox, name) for sandbox, name in found if name is not None]

    async def reap(self, sandbox_id: str) -> None:
        """Ends a sandbox of finqa, by its name, and returns when it is gone; ignores other ids.

        Raises:
            SandboxError: It still exists after some time.
        """
        if is_name(sandbox_id):  # other ids are not ours
            for sandbox in await self._cloud.find([sandbox_id]):
                await self._cloud.end(sandbox, sandbox_id)

    async def close(self) -> None:
        """Ends every sandbox and every start in progress.

        Raises:
            SandboxError: Some sandboxes are still there; `finqa sandbox reap` ends them later.
        """
        if self._closed:
            return
        self._closed = True
        try:
            outcomes = await asyncio.gather(*(sandbox.stop() for sandbox in [*self._sandboxes]), return_exceptions=True)
            await self._last_look()
        finally:
            self._cloud.close()
        if errors := [outcome for outcome in outcomes if outcome is not None]:
            raise SandboxError(
                f"{len(errors)} sandboxes could not be removed; the first: {errors[0]}",
                remedy="finqa sandbox reap --sandbox cwsandbox",
            )

    async def _look(self) -> None:
        """Check once that the service answers: else each episode would find out by itself, after all its retries."""
        async with self._first_look:
            if not self._reached:
                await self._cloud.find([OURS], FIRST_LOOK_S)
                self._reached = True

    async def _made(self, name: str, tags: Sequence[str]) -> Sandbox:
        async with self._places:
            creation = Creation(self._cloud, self._config, name, tags)
            try:
                return await creation.run()
            finally:
                if creation.doubtful:
                    self._doubtful.add(name)

    async def _last_look(self) -> None:
        """End sandboxes whose create was never answered. Never raises: they may well not exist."""

        async def look(name: str) -> None:
            try:
                for sandbox in await self._cloud.find([name], LAST_LOOK_S):
                    await self._cloud.end(sandbox, name)
            except FinqaError as error:
                log.warning("a sandbox that did not start may still exist", sandbox=name, reason=error.message)

        await asyncio.gather(*map(look, self._doubtful))


def _described(sandbox: Sandbox, name: str) -> SandboxInfo:
    return SandboxInfo(
        id=name,
        state="stopped" if sandbox.status is None else _STATES.get(sandbox.status, "stopped"),
        labels=labels_in(sandbox.tags),
        created=sandbox.created_at.timestamp() if sandbox.created_at else 0.0,
    )


def aviato_provider(config: CoreWeaveSandboxConfig | None, context: SandboxContext) -> CoreWeaveSandboxProvider:
    """Return the provider under `aviato`, its name before 2026-02-27, with the environment variables of that time.

    Raises:
        AuthenticationError: The key is W&B's, and WANDB_ENTITY_NAME is missing.
    """
    # Log: `--sandbox aviato` is used.
    log.warning(
        "aviato is the old name of cwsandbox and will be removed", instead=f"--sandbox cwsandbox and {KEY_VARIABLE}"
    )
    return CoreWeaveSandboxProvider(mapped(config or CoreWeaveSandboxConfig(), os.environ), context)
