"""The `daytona` provider: sandboxes in the Daytona cloud."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

import structlog
from daytona import AsyncSandbox, DaytonaError, ListSandboxesQuery

from finqa_cli.contracts import AccountQuota, SandboxContext, SandboxProvider
from finqa_cli.errors import FinqaError, SandboxError
from finqa_cli.types import ImageInfo, SandboxInfo, SandboxSpec, ServerSpec
from finqa_plugins.sandboxes._images.image_recipe import build_command, served_name
from finqa_plugins.sandboxes._quota.shared_quota import account_digest, open_quota
from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_cloud import REQUEST_TIMEOUT_S, Cloud, api_key, api_url
from finqa_plugins.sandboxes.daytona.daytona_create import Creation
from finqa_plugins.sandboxes.daytona.daytona_images import Images
from finqa_plugins.sandboxes.daytona.daytona_ledger import Ledger, Leftovers, OpenName, forget, open_names
from finqa_plugins.sandboxes.daytona.daytona_listing import (
    described,
    execution_params,
    is_gone,
    is_ours,
    query_labels,
    server_params,
)
from finqa_plugins.sandboxes.daytona.daytona_recipe import image_name, image_options
from finqa_plugins.sandboxes.daytona.daytona_sandbox import DaytonaExecutingSandbox, DaytonaSandbox, DaytonaSandboxBase
from finqa_plugins.sandboxes.daytona.gate import CreateGate
from finqa_plugins.sandboxes.daytona.server import Prober, start_server
from finqa_plugins.sandboxes.daytona.upkeep import Upkeep

log = structlog.get_logger(__name__)

LOOKUPS_AT_ONCE = 50
DOUBT_S = 600.0
"""Seconds after which a name that is not listed has no sandbox: no request is carried out so late."""
PAGE = 100
OUTPUT_TIMEOUT_S = 3.0
SECOND_TRY_S = 5.0
"""Seconds for a second try to end a sandbox."""


class DaytonaSandboxProvider(SandboxProvider):
    """Sandboxes in the Daytona cloud, whose servers start from images that it builds.

    Every sandbox has a name of finqa, which is written to the ledger before the sandbox is requested. So `list` and
    `reap` find every sandbox that a lost reply, a cancelled start or a killed process leaves.
    """

    builds_images = True

    def __init__(self, config: DaytonaSandboxConfig | None, context: SandboxContext) -> None:
        self._config = config or DaytonaSandboxConfig()
        self._folder = context.home / "daytona"
        self._cloud = Cloud(self._config)
        self._gate = CreateGate(lambda: self._open_quota(context))
        self._ledger = Ledger(self._folder)
        self._leftovers = Leftovers(self._cloud, self._ledger, self._config.delete_timeout_s)
        self._prober = Prober()
        self._upkeep = Upkeep(self._cloud, self._config)
        self._images = Images(self._cloud, self._config)
        self._image_options = image_options(self._config)
        self._image_names: dict[tuple[object, ...], str] = {}
        self._starts: set[asyncio.Task[DaytonaSandboxBase]] = set()
        self._sandboxes: set[DaytonaSandboxBase] = set()
        self._gone: set[str] = set()
        self._said_why = False
        self._closed = False

    def check_key(self) -> None:
        """Raise an AuthenticationError if there is no key."""
        api_key(self._config)

    async def start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> DaytonaSandboxBase:
        """A new sandbox with a healthy server, or one that executes code. If cancelled, removes it before returning.

        Raises:
            SandboxError: The sandbox did not become ready and was removed.
            AuthenticationError: The key is missing, refused, or may not start sandboxes.
            DataError: There is no image of this snapshot and code of finqa.
            ServiceUnavailableError: The account's quota is used up.
        """
        self._cloud.client()  # raises without a key, and when closed
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

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxInfo]:
        """Sandboxes with all these labels, from any machine; this machine's own also if Daytona's list lags behind."""
        client = self._cloud.client()
        query = ListSandboxesQuery(labels=query_labels(labels), limit=PAGE)

        async def listed() -> list[AsyncSandbox]:
            return [remote async for remote in client.list(query, request_timeout=REQUEST_TIMEOUT_S)]

        found = {remote.id: remote for remote in await self._cloud.call("listing the sandboxes", listed)}
        names = {remote.name for remote in found.values()}
        unlisted = [
            name
            for name in await asyncio.to_thread(lambda: [*open_names(self._folder)])
            if name.name not in names and labels.items() <= name.labels.items()
        ]
        found.update({remote.id: remote for remote in await self._look_up(unlisted)})
        timeout_s = self._config.delete_timeout_s
        return [
            described(remote)
            for remote in found.values()
            if is_ours(remote) and not is_gone(remote, timeout_s) and remote.id not in self._gone
        ]

    async def reap(self, sandbox_id: str) -> None:
        """Ends a sandbox of finqa and returns when it is gone.

        Raises:
            SandboxError: It still exists after some time.
            FinqaError: The sandbox is not one of finqa's.
        """
        remote = await self._cloud.get(sandbox_id)
        if remote is None:
            return
        if not is_ours(remote):
            raise FinqaError(f"Sandbox {sandbox_id} was not started by finqa; it is unchanged.")
        await self._cloud.delete(remote, self._config.delete_timeout_s)
        await self._forget(remote)

    async def close(self) -> None:
        """Ends every sandbox and every start in progress.

        Raises:
            SandboxError: Some sandboxes are still there; `finqa sandbox reap` ends them later.
        """
        if self._closed:
            return
        self._closed = True
        self._gate.refuse(SandboxError("The sandbox provider is closed."), seconds=float("inf"))
        for task in self._starts:
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        await self._upkeep.close()
        try:
            failures = await asyncio.gather(*(sandbox.stop() for sandbox in self._sandboxes), return_exceptions=True)
            leftovers = await self._leftovers.end({sandbox.name for sandbox in self._sandboxes})
        finally:
            await asyncio.to_thread(self._ledger.close)
            await asyncio.to_thread(self._gate.close)
            await self._prober.close()
            await self._cloud.close()
        errors = [*(failure for failure in failures if failure is not None), *leftovers]
        if errors:
            raise SandboxError(
                f"{len(errors)} sandboxes could not be removed; the first: {errors[0]}",
                remedy="finqa sandbox reap --sandbox daytona, which deletes them again; those that "
                "finqa sandbox ls --sandbox daytona then lists as stuck only Daytona's support can remove",
            )

    async def build_image(self, spec: ServerSpec, on_log: Callable[[str], None]) -> tuple[ImageInfo, bool]:
        """See `SandboxProvider`."""
        return await self._images.build_image(spec, on_log)

    async def images(self) -> Sequence[ImageInfo]:
        """See `SandboxProvider`."""
        return await self._images.images()

    async def delete_images(self, snapshot: str) -> Sequence[str]:
        """See `SandboxProvider`."""
        return await self._images.delete_images(snapshot)

    def _open_quota(self, context: SandboxContext) -> AccountQuota:
        account = account_digest("daytona", api_url(), api_key(self._config))
        return open_quota(context, account, self._config.create_limit, self._config.create_window_s)

    async def _start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> DaytonaSandboxBase:
        name = f"finqa-{secrets.token_hex(6)}"
        timeout_s = self._config.create_timeout_s
        if isinstance(spec, ServerSpec):
            snapshot = served_name(spec, self._image_options)
            params = server_params(name, await self._image(spec), spec, labels, self._config)
            build = build_command(spec, self._image_options)
            creation = Creation(self._cloud, self._gate, params, snapshot=snapshot, build=build, timeout_s=timeout_s)
        else:
            image_params = execution_params(name, labels, self._config)
            creation = Creation(self._cloud, self._gate, image_params, timeout_s=timeout_s)
        try:
            await self._ledger.opened(name, labels)
            sandbox = await self._prepared(await creation.run(), spec)
        except BaseException:
            await self._undo(creation)
            raise
        self._sandboxes.add(sandbox)
        self._upkeep.add(sandbox)
        return sandbox

    async def _prepared(self, remote: AsyncSandbox, spec: SandboxSpec) -> DaytonaSandboxBase:
        """The sandbox, ready to execute code or with its server started, as the spec says."""
        if not isinstance(spec, ServerSpec):
            executing = DaytonaExecutingSandbox(self._cloud, remote, self._end)
            await executing.prove(self._config.start_timeout_s)
            return executing
        sandbox = DaytonaSandbox(
            self._cloud,
            self._prober,
            remote,
            spec,
            command=await start_server(self._cloud, remote, spec),
            url_ttl_s=self._config.url_ttl_s,
            end=self._end,
        )
        try:
            await sandbox.wait_until_healthy(self._config.start_timeout_s)
        except DaytonaError as error:
            raise SandboxError(f"Sandbox {sandbox.id} disappeared while its server was starting.") from error
        return sandbox

    async def _undo(self, creation: Creation) -> None:
        """End what was created. Never raises: the error of the start is reported, and the ledger has what is left."""
        try:
            certain = await creation.undo(self._config.delete_timeout_s)
        except FinqaError as error:
            log.info("a sandbox that did not start may still exist", sandbox=creation.name, reason=str(error))
            return
        if certain:
            await self._ledger.gone([creation.name])
        elif not self._closed:
            self._leftovers.search(creation.name)

    async def _end(self, sandbox: DaytonaSandboxBase) -> None:
        tried, sandbox.ended = sandbox.ended, True
        self._upkeep.remove(sandbox)
        if sandbox not in self._sandboxes:
            return
        if isinstance(sandbox, DaytonaSandbox) and sandbox.sick and not self._closed:
            await self._say_why(sandbox)
        await self._cloud.delete(
            sandbox.remote, min(self._config.delete_timeout_s, SECOND_TRY_S if tried else float("inf"))
        )
        self._sandboxes.discard(sandbox)
        self._gone.add(sandbox.id)
        await self._ledger.gone([sandbox.name])

    async def _say_why(self, sandbox: DaytonaSandbox) -> None:
        """Log why a server ended, before its logs are gone. Only the first is a warning: all share one reason."""
        with contextlib.suppress(TimeoutError, DaytonaError, FinqaError):
            async with asyncio.timeout(OUTPUT_TIMEOUT_S):
                output = await sandbox.output()
            tell = log.info if self._said_why else log.warning
            self._said_why = True
            # Log: A sandbox died; only the first one is a warning, because all share the cause.
            tell("the server of a sandbox stopped answering", sandbox=sandbox.id, output=output)

    async def _look_up(self, names: Sequence[OpenName]) -> Sequence[AsyncSandbox]:
        """The existing sandboxes of these names. Forgets names that can no longer have one."""
        places = asyncio.Semaphore(LOOKUPS_AT_ONCE)

        async def look_up(name: OpenName) -> AsyncSandbox | None:
            async with places:
                return await self._cloud.get(name.name)

        found = await asyncio.gather(*(look_up(name) for name in names))
        absent = [
            name
            for name, remote in zip(names, found, strict=True)
            if remote is None and not name.owned and time.time() - name.asked > DOUBT_S
        ]
        if absent:
            await asyncio.to_thread(forget, absent)
        return [remote for remote in found if remote is not None]

    async def _forget(self, remote: AsyncSandbox) -> None:
        """Remove a reaped sandbox from the upkeep and from all ledgers on this machine."""
        self._gone.add(remote.id)
        for sandbox in [sandbox for sandbox in self._sandboxes if sandbox.id == remote.id]:
            sandbox.ended = True
            self._upkeep.remove(sandbox)
            self._sandboxes.discard(sandbox)
        await self._ledger.gone([remote.name])
        written = await asyncio.to_thread(lambda: [*open_names(self._folder)])
        await asyncio.to_thread(forget, [name for name in written if name.name == remote.name])

    async def _image(self, spec: ServerSpec) -> str:
        name = served_name(spec, self._image_options)
        key = (name, spec.snapshot.digest if spec.snapshot else "", spec.module, spec.source)
        if key not in self._image_names:
            self._image_names[key] = await asyncio.to_thread(image_name, spec, self._config)
        return self._image_names[key]
