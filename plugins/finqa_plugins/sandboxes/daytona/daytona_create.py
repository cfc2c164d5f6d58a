"""Creation of one sandbox: at most one results, however often the request has to be repeated."""

from __future__ import annotations

import asyncio
import time

from daytona import (
    AsyncSandbox,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    DaytonaAuthenticationError,
    DaytonaError,
    DaytonaNotFoundError,
)

from finqa_cli.errors import DataError, FinqaError, SandboxError
from finqa_plugins.sandboxes.daytona.daytona_cloud import REQUEST_TIMEOUT_S, Cloud
from finqa_plugins.sandboxes.daytona.daytona_errors import (
    create_limit,
    is_ambiguous,
    is_conflict,
    is_full,
    is_passing,
    status_of,
)
from finqa_plugins.sandboxes.daytona.gate import CreateGate

SANDBOX_LABEL = "finqa.box"
LOOKUP_AFTER_S = 10.0
"""Seconds after which a create without a reply is looked up by its name: the reply may never come."""
CONFLICT_LOOKUPS = 8
MOST_FAULTS = 6
MOST_REFUSALS = 30
_POLL_S = 1.0
_FAILED = ("error", "build_failed", "destroying", "destroyed")
_UNDO_WAITS_S = (0.5, 0.5, 1.0, 2.0, 4.0)


class Creation:
    """One name, at most one sandbox.

    Names are unique within an organisation of Daytona. A request whose reply was lost is repeated with the same name
    and can therefore never create a second sandbox: either the sandbox is found by its name, or the repeated request
    creates it, or that is refused as a conflict and the sandbox is found then.
    """

    def __init__(
        self,
        cloud: Cloud,
        gate: CreateGate,
        params: CreateSandboxFromSnapshotParams | CreateSandboxFromImageParams,
        *,
        timeout_s: float,
        snapshot: str = "",
        build: str = "",
    ) -> None:
        """If finqa built the image: `snapshot` names its content, `build` is the command for building it."""
        assert params.name
        self.name = params.name
        self._cloud = cloud
        self._gate = gate
        self._params = params
        self._image = (isinstance(params, CreateSandboxFromSnapshotParams) and params.snapshot) or ""
        self._snapshot = snapshot
        self._build = build
        self._timeout_s = timeout_s
        self._deadline = float("inf")
        self._request: asyncio.Task[AsyncSandbox] | None = None
        self._doubtful = False
        self._refused = False

    async def run(self) -> AsyncSandbox:
        """Send requests, as the gate lets them through, until the sandbox is started.

        Raises:
            SandboxError: The sandbox did not start; another one may.
            FinqaError: No sandbox will start before the remedy is carried out.
        """
        refusals = faults = 0
        while True:
            async with self._gate.place():
                try:
                    return await self._ask()
                except DaytonaError as error:
                    failure = error
            if is_full(failure):
                refusals += 1
                self._gate.pause(self._cloud.pause_s(refusals, failure), create_limit(failure.headers))
            else:
                if (found := await self._look_after(failure)) is not None:
                    return await self._started(found)
                faults += 1
                await asyncio.sleep(self._cloud.pause_s(faults, failure))
            if refusals > MOST_REFUSALS or faults > MOST_FAULTS:
                raise self._cloud.explain(failure, "starting a sandbox") from failure

    async def undo(self, timeout_s: float) -> bool:
        """End what was created; False if a request is unanswered, so that its sandbox may appear later.

        Raises:
            FinqaError: There is a sandbox that could not be ended.
        """
        if self._request is None:
            return True
        sandbox = self._answer()
        try:
            for wait_s in _UNDO_WAITS_S:
                if sandbox is not None or self._request.done():
                    break
                await asyncio.wait({self._request}, timeout=wait_s)
                sandbox = self._answer() or await self._found()
        finally:
            if not self._request.done():
                self._doubtful |= sandbox is None
                self._request.cancel()
                await asyncio.wait({self._request})
        if sandbox is None and not self._refused:
            sandbox = await self._found()
        if sandbox is None:
            return not self._doubtful
        await self._cloud.delete(sandbox, timeout_s)
        return True

    async def _ask(self) -> AsyncSandbox:
        """Send one request. If this is cancelled, the request continues, so that `undo` sees what it created."""
        self._deadline = time.monotonic() + self._timeout_s
        self._request = asyncio.create_task(self._cloud.client().create(self._params, timeout=self._timeout_s))
        self._request.add_done_callback(_seen)
        await asyncio.wait({self._request}, timeout=LOOKUP_AFTER_S)
        if not self._request.done() and (sandbox := await self._found()) is not None:
            self._request.cancel()
            return await self._started(sandbox)
        await asyncio.wait({self._request})
        return self._request.result()

    def _answer(self) -> AsyncSandbox | None:
        """The sandbox in the reply to the last request; on a failure, note whether one may exist all the same."""
        assert self._request is not None
        if not self._request.done() or self._request.cancelled():
            return None
        failure = self._request.exception()
        if failure is None:
            return self._request.result()
        self._refused = isinstance(failure, DaytonaAuthenticationError)
        self._doubtful |= isinstance(failure, DaytonaError) and is_ambiguous(failure)
        return None

    async def _look_after(self, failure: DaytonaError) -> AsyncSandbox | None:
        """The sandbox that was created in spite of the failure; None if the request may be repeated."""
        if is_conflict(failure):
            return await self._find_taken(failure)
        if is_ambiguous(failure):
            found = await self._found()
            self._doubtful = found is None
            return found
        if not is_passing(failure):
            raise await self._final(failure) from failure
        return None

    async def _find_taken(self, failure: DaytonaError) -> AsyncSandbox:
        """The sandbox that has our name already. Look-ups may lag a little behind the conflict."""
        for attempt in range(1, CONFLICT_LOOKUPS + 1):
            if (found := await self._cloud.get(self.name)) is not None:
                if not self._is_ours(found):
                    raise SandboxError(f"The name {self.name} is used by a sandbox of another user.")
                return found
            await asyncio.sleep(self._cloud.pause_s(attempt, failure))
        self._doubtful = True
        raise self._cloud.explain(failure, "starting a sandbox")

    async def _found(self) -> AsyncSandbox | None:
        """The sandbox of our name; None if there is none, or if it is another user's, which must not be ended."""
        found = await self._cloud.get(self.name)
        return found if found is not None and self._is_ours(found) else None

    def _is_ours(self, sandbox: AsyncSandbox) -> bool:
        return sandbox.labels.get(SANDBOX_LABEL) == self.name

    async def _started(self, sandbox: AsyncSandbox) -> AsyncSandbox:
        while (state := _plain(sandbox.state)) != "started":
            if state in _FAILED:
                raise SandboxError(f"Sandbox {sandbox.id} is {state} ({sandbox.error_reason or 'no reason given'}).")
            if time.monotonic() > self._deadline:
                raise SandboxError(f"Sandbox {sandbox.id} is {state} after {self._timeout_s:g} s.")
            await asyncio.sleep(_POLL_S)
            try:
                await self._cloud.call(
                    f"watching sandbox {sandbox.id}", lambda: sandbox.refresh_data(request_timeout=REQUEST_TIMEOUT_S)
                )
            except DaytonaNotFoundError as error:
                raise SandboxError(f"Sandbox {sandbox.id} disappeared while it was starting.") from error
        return sandbox

    async def _final(self, failure: DaytonaError) -> FinqaError:
        """The error that ends this start and all waiting ones; only this one if the sandbox disappeared."""
        told = self._cloud.explain(failure, "starting a sandbox")
        if status_of(failure) in (400, 404):
            if self._image and (fault := await self._image_fault()):
                told = DataError(
                    f"Daytona has no ready image of snapshot {self._snapshot!r} with this version of finqa: "
                    f"{self._image} {fault}.",
                    remedy=self._build,
                )
            elif isinstance(failure, DaytonaNotFoundError):
                return SandboxError(f"Sandbox {self.name} disappeared while it was starting.")
        self._gate.refuse(told)
        return told

    async def _image_fault(self) -> str:
        """What is wrong with the image; empty if it is ready."""
        client = self._cloud.client()
        try:
            image = await self._cloud.call(f"looking for image {self._image}", lambda: client.snapshot.get(self._image))
        except DaytonaNotFoundError:
            return "does not exist"
        state = _plain(image.state)
        return "" if state == "active" else f"is {state}" + (f" ({image.error_reason})" if image.error_reason else "")


def _seen(request: asyncio.Task[AsyncSandbox]) -> None:
    """Keeps asyncio from reporting the failure of a request that no caller waits for."""
    if not request.cancelled():
        request.exception()


def _plain(state: object) -> str:
    return str(getattr(state, "value", state) or "in an unknown state")
