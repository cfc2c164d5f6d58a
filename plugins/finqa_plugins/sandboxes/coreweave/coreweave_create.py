"""One sandbox from its name to running, and what has to be undone when it does not get there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from cwsandbox import CWSandboxError, Sandbox, SandboxStatus

from finqa_cli.errors import FinqaError, SandboxError
from finqa_plugins.sandboxes.coreweave.config import CoreWeaveSandboxConfig
from finqa_plugins.sandboxes.coreweave.coreweave_cloud import Cloud
from finqa_plugins.sandboxes.coreweave.coreweave_errors import is_refusal

log = structlog.get_logger(__name__)

SEARCH_PAUSES_S = (0.0, 0.5, 2.0)
"""Before each look for a sandbox whose create was never answered: the list may lag behind."""
SEARCH_PATIENCE_S = 5.0


class Birth:
    """Creates one sandbox and waits until it runs. Failed or cancelled, it ends the sandbox first if there is one.

    Attributes:
        doubtful: After a failure: a sandbox of this name may be there all the same.
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
            FinqaError: No try can succeed: key, quota, image, size.
        """
        sandbox = await self._cloud.unborn(self._tags)
        creating = asyncio.create_task(self._create(sandbox))
        try:
            await asyncio.shield(creating)
            doing = f"starting sandbox {self._name}"
            # `sandbox.wait` would block the event loop.
            await self._cloud.call(doing, lambda: sandbox, self._config.start_timeout_s)
            if sandbox.status is not SandboxStatus.RUNNING:  # for the SDK, one that has ended well has not failed
                raise SandboxError(f"Sandbox {self._name} was {sandbox.status} as soon as it had started.")
        except BaseException:
            self._given_up = True
            # A create under way is not cut: its answer says what there is to end.
            await asyncio.wait({creating})
            if not creating.cancelled():
                creating.exception()  # told already, or of no interest any more
            await self._undo(sandbox)
            raise
        return sandbox

    async def _create(self, sandbox: Sandbox) -> None:
        """Every try carries the same request id, so that the service makes one sandbox of them all."""

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
        """Never raises: the start's own error is what counts."""
        try:
            if sandbox.sandbox_id is not None:
                self.doubtful = True
                await self._cloud.end(sandbox, self._name)
                self.doubtful = False
            elif self.doubtful:
                self.doubtful = not await self._search()
        except FinqaError as error:
            log.warning("a sandbox that did not start may be there", sandbox=self._name, reason=error.message)

    async def _search(self) -> bool:
        """Whether the sandbox was found, and ended."""
        for pause_s in SEARCH_PAUSES_S:
            await asyncio.sleep(pause_s)
            found = await self._cloud.find([self._name], SEARCH_PATIENCE_S)
            for sandbox in found:
                await self._cloud.end(sandbox, self._name)
            if found:
                return True
        return False
