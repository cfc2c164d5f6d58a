"""The gRPC service of a loopback CoreWeave: the part of `coreweave.sandbox.v1.SandboxService` that executions need.

It uses the classes that are generated in the SDK. Other methods answer UNIMPLEMENTED, as does ConnectSandbox, so that
the SDK sends executions through the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import shutil
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from cwsandbox._error_info import CWSANDBOX_ERROR_DOMAIN
from cwsandbox._proto import sandbox_pb2 as pb
from cwsandbox._proto import sandbox_pb2_grpc
from google.protobuf import any_pb2  # type: ignore[import-untyped]
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from pydantic import Field

from finqa_testing.coreweave.coreweave_commands import NOT_FOUND, SandboxProcess
from finqa_testing.random_streams import ConfigSection, Delay, RandomStreams, Share

ENDED = (pb.STATE_COMPLETED, pb.STATE_FAILED, pb.STATE_TERMINATED)
Context = Any
"""A `grpc.aio.ServicerContext`, for which there are no types."""


class CoreWeaveFaults(ConfigSection):
    """Probabilities of faults, between 0 and 1. Each kind of fault has its own stream of random numbers.

    Attributes:
        unavailable: Requests that are answered UNAVAILABLE and have no effect.
        busy: Create requests that are answered RESOURCE_EXHAUSTED with the reason
            CWSANDBOX_RUNNER_CAPACITY_EXHAUSTED.
        lost_reply: Create requests that are answered UNAVAILABLE although the sandbox is created.
        hang: Create requests that create their sandbox and are never answered.
        start_failed: Sandboxes that end in STATE_FAILED instead of STATE_RUNNING.
        execution_cut: Executions whose stream is cut off after the command has started.
    """

    unavailable: float = Share
    busy: float = Share
    lost_reply: float = Share
    hang: float = Share
    start_failed: float = Share
    execution_cut: float = Share


class CoreWeaveConfig(ConfigSection):
    """Configuration of a loopback CoreWeave. The defaults are a fast account without faults.

    Attributes:
        seed: Seed of every random choice.
        api_key: Key of CoreWeave that is accepted; None for a random one.
        wandb_key: Key of W&B that is accepted; empty for none.
        images: Images that can be pulled; a sandbox with another image ends in STATE_FAILED.
        most_sandboxes: Most sandboxes at once; a create request above it is answered RESOURCE_EXHAUSTED with the reason
            CWSANDBOX_QUOTA_EXCEEDED.
        page_size: Number of sandboxes on one page of a list.
        create: Time from a create request to its answer.
        start: Time from that answer to STATE_RUNNING.
        end: Time for which a deleted sandbox stays in STATE_TERMINATING.
        faults: Probabilities of faults.
    """

    seed: int = 0
    api_key: str | None = Field(default=None, min_length=8)
    wandb_key: str = ""
    images: tuple[str, ...] = ("python:3.11",)
    most_sandboxes: int = Field(default=2000, ge=0)
    page_size: int = Field(default=100, ge=1)
    create: Delay = Delay()
    start: Delay = Delay()
    end: Delay = Delay()
    faults: CoreWeaveFaults = CoreWeaveFaults()


class CoreWeaveSandbox:
    """One sandbox: its message, its folder and the commands that run in it."""

    def __init__(self, sandbox_id: str, spec: pb.SandboxSpec, folder: Path) -> None:
        self.message = pb.Sandbox(sandbox_id=sandbox_id, spec=spec)
        self.message.status.state = pb.STATE_CREATING
        self.message.status.create_time.FromNanoseconds(time.time_ns())
        self.folder = folder
        self.commands: set[SandboxProcess] = set()

    @property
    def id(self) -> str:
        """The id that the service gave."""
        return self.message.sandbox_id

    @property
    def state(self) -> pb.State:
        """The state that the SDK receives."""
        return self.message.status.state

    @property
    def ended(self) -> bool:
        """Whether it is in a state that it never leaves."""
        return self.state in ENDED

    def become(self, state: pb.State, reason: str = "") -> None:
        """Changes its state, unless it has ended."""
        if not self.ended:
            self.message.status.state = state
            self.message.status.state_reason = reason

    async def end(self, state: pb.State, reason: str = "") -> None:
        """Ends the sandbox and its commands. STATE_FAILED is set at once, another state when nothing of it is left."""
        self.become(state if state == pb.STATE_FAILED else pb.STATE_TERMINATING, reason)
        await asyncio.gather(*(command.end() for command in self.commands))
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
        self.become(state, reason)


class CoreWeaveSandboxes:
    """All sandboxes ever created; ended ones are still found by their id, as in the service."""

    def __init__(self, config: CoreWeaveConfig) -> None:
        self.config = config
        self.random = RandomStreams(config.seed)
        self._sandboxes: dict[str, CoreWeaveSandbox] = {}
        self._by_request: dict[str, CoreWeaveSandbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, sandbox_id: str) -> CoreWeaveSandbox | None:
        """Returns the sandbox with an id; None if there is none."""
        return self._sandboxes.get(sandbox_id)

    def tagged(self, tags: Iterable[str], *, ended: bool = False) -> list[CoreWeaveSandbox]:
        """Returns the sandboxes that have all these tags, oldest first; those that have ended only with `ended`."""
        wanted = set(tags)
        return [
            sandbox
            for sandbox in self._sandboxes.values()
            if wanted <= set(sandbox.message.spec.tags) and (ended or not sandbox.ended)
        ]

    @property
    def ever(self) -> int:
        """Number of sandboxes that were created."""
        return len(self._sandboxes)

    def reconfigure(self, config: CoreWeaveConfig) -> None:
        """Replaces the configuration; the streams of random numbers begin again."""
        self.config = config
        self.random = RandomStreams(config.seed)

    def living(self) -> list[CoreWeaveSandbox]:
        """Returns the sandboxes that have not ended."""
        return self.tagged(())

    def create(self, request: pb.CreateSandboxRequest) -> CoreWeaveSandbox:
        """Creates a sandbox, or returns the one that was created for the same request id."""
        if request.request_id in self._by_request:
            return self._by_request[request.request_id]
        sandbox = CoreWeaveSandbox(
            str(uuid.uuid4()), request.sandbox.spec, Path(tempfile.mkdtemp(prefix="loopback-coreweave-"))
        )
        self._sandboxes[sandbox.id] = sandbox
        if request.request_id:
            self._by_request[request.request_id] = sandbox
        self._later(self._start(sandbox))
        return sandbox

    async def end(self, sandbox: CoreWeaveSandbox) -> None:
        """Ends a sandbox: STATE_TERMINATING at once, STATE_TERMINATED a little later."""
        if sandbox.ended or sandbox.state == pb.STATE_TERMINATING:
            return
        sandbox.become(pb.STATE_TERMINATING)
        self._later(self._finish(sandbox))

    async def kill(self, ids: Collection[str]) -> list[str]:
        """Makes these sandboxes fail, or all without ids, and ends their commands. Returns the ids of the failed."""
        hit = [sandbox for sandbox in self.living() if not ids or sandbox.id in ids]
        await asyncio.gather(*(sandbox.end(pb.STATE_FAILED, "NodeLost: the runner is gone") for sandbox in hit))
        return [sandbox.id for sandbox in hit]

    async def close(self) -> None:
        """Ends every sandbox and every timer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(sandbox.end(pb.STATE_TERMINATED) for sandbox in self._sandboxes.values()))

    async def _start(self, sandbox: CoreWeaveSandbox) -> None:
        await asyncio.sleep(self.random.seconds("start", self.config.start))
        image = sandbox.message.spec.containers[0].image
        if image not in self.config.images:
            await sandbox.end(pb.STATE_FAILED, f"ErrImagePull: Failed to pull image {image}: not found")
        elif self.random.hit("start_failed", self.config.faults.start_failed):
            await sandbox.end(pb.STATE_FAILED, "ContainerCannotRun: injected")
        elif sandbox.state == pb.STATE_CREATING:
            sandbox.message.status.start_time.FromNanoseconds(time.time_ns())
            sandbox.become(pb.STATE_RUNNING)

    async def _finish(self, sandbox: CoreWeaveSandbox) -> None:
        await asyncio.sleep(self.random.seconds("end", self.config.end))
        await sandbox.end(pb.STATE_TERMINATED)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class SandboxService(sandbox_pb2_grpc.SandboxServiceServicer):
    """Answers requests as CoreWeave's service does, from one table of sandboxes."""

    def __init__(self, sandboxes: CoreWeaveSandboxes, api_key: str) -> None:
        self._sandboxes = sandboxes
        self._api_key = api_key
        self.requests: Counter[str] = Counter()
        self.seen: dict[str, str] = {}

    async def CreateSandbox(self, request: pb.CreateSandboxRequest, context: Context) -> pb.Sandbox:
        """Creates one sandbox for one request id, however often the request is repeated."""
        await self._admit("CreateSandbox", context)
        sandboxes, faults = self._sandboxes, self._sandboxes.config.faults
        if not request.sandbox.spec.containers:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "CWSANDBOX_INVALID_REQUEST", "no container")
        if sandboxes.random.hit("busy", faults.busy):
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            await _refuse(context, code, "CWSANDBOX_RUNNER_CAPACITY_EXHAUSTED", "every runner is full")
        if len(sandboxes.living()) >= sandboxes.config.most_sandboxes:
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            await _refuse(context, code, "CWSANDBOX_QUOTA_EXCEEDED", "the organisation's sandboxes are used up")
        sandbox = sandboxes.create(request)
        await asyncio.sleep(sandboxes.random.seconds("create", sandboxes.config.create))
        if sandboxes.random.hit("hang", faults.hang):
            await asyncio.Event().wait()  # until the client cancels the call
        if sandboxes.random.hit("lost_reply", faults.lost_reply):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        return sandbox.message

    async def GetSandbox(self, request: pb.GetSandboxRequest, context: Context) -> pb.Sandbox:
        """Returns the current state of a sandbox, also after its end."""
        await self._admit("GetSandbox", context)
        return (await self._find(request.sandbox_id, context)).message

    async def ListSandboxes(self, request: pb.ListSandboxesRequest, context: Context) -> pb.ListSandboxesResponse:
        """Returns a page of the sandboxes that have the given tags."""
        await self._admit("ListSandboxes", context)
        found = self._sandboxes.tagged(request.tags, ended=request.show_terminated)
        first = int(request.page_token or 0)
        after = first + self._sandboxes.config.page_size
        return pb.ListSandboxesResponse(
            sandboxes=[sandbox.message for sandbox in found[first:after]],
            next_page_token=str(after) if found[after:] else "",
        )

    async def DeleteSandbox(self, request: pb.DeleteSandboxRequest, context: Context) -> pb.DeleteSandboxResponse:
        """Begins to end a sandbox and answers at once."""
        await self._admit("DeleteSandbox", context)
        sandbox = self._sandboxes.find(request.sandbox_id)
        if sandbox is None and request.allow_missing:
            return pb.DeleteSandboxResponse()
        sandbox = sandbox or await self._find(request.sandbox_id, context)
        await self._sandboxes.end(sandbox)
        return pb.DeleteSandboxResponse(sandbox=sandbox.message)

    async def ConnectSandbox(self, request: pb.ConnectSandboxRequest, context: Context) -> None:
        """Refuses direct connections to sandboxes."""
        await self._admit("ConnectSandbox", context)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no direct data plane")

    async def StreamExec(
        self, requests: AsyncIterator[pb.ExecStreamRequest], context: Context
    ) -> AsyncIterator[pb.ExecStreamResponse]:
        """Runs one command and answers with ready, output and exit; if the stream is cut off, the command is ended."""
        await self._admit("StreamExec", context)
        first = await anext(requests)
        sandbox = await self._find(first.init.sandbox_id, context)
        if sandbox.state != pb.STATE_RUNNING:
            code = grpc.StatusCode.FAILED_PRECONDITION
            await _refuse(context, code, "CWSANDBOX_SANDBOX_NOT_RUNNING", f"sandbox {sandbox.id} does not run")
        try:
            command = await SandboxProcess.start(first.init.command, sandbox.folder)
        except OSError as error:
            yield _output(False, f"{first.init.command[0]}: {error.strerror}\n".encode())
            yield pb.ExecStreamResponse(exit=pb.ExecStreamExit(exit_code=NOT_FOUND))
            return
        sandbox.commands.add(command)
        feeding = asyncio.create_task(_feed(requests, command))
        try:
            yield pb.ExecStreamResponse(ready=pb.ExecStreamReady())
            if self._sandboxes.random.hit("execution_cut", self._sandboxes.config.faults.execution_cut):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            async for is_stdout, data in command.output():
                yield _output(is_stdout, data)
            exit_code = await command.exit_code()
            if sandbox.state != pb.STATE_RUNNING:
                code = grpc.StatusCode.UNAVAILABLE
                await _refuse(context, code, "CWSANDBOX_RUNNER_UNAVAILABLE", f"sandbox {sandbox.id} is gone")
            yield pb.ExecStreamResponse(exit=pb.ExecStreamExit(exit_code=exit_code))
        finally:
            feeding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feeding
            await asyncio.shield(command.end())
            sandbox.commands.discard(command)

    async def _admit(self, method: str, context: Context) -> None:
        """Counts the request, checks the key and injects the fault `unavailable` at random."""
        self.requests[method] += 1
        given = dict(context.invocation_metadata())
        self.seen = {name: str(value) for name, value in given.items() if name in ("x-entity-id", "x-project-name")}
        wandb_key = self._sandboxes.config.wandb_key
        accepted = hmac.compare_digest(str(given.get("authorization", "")), f"Bearer {self._api_key}")
        if not (accepted or (wandb_key and given.get("x-wandb-api-key") == wandb_key)):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the key is not known")
        if self._sandboxes.random.hit("unavailable", self._sandboxes.config.faults.unavailable):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "upstream connect error")

    async def _find(self, sandbox_id: str, context: Context) -> CoreWeaveSandbox:
        sandbox = self._sandboxes.find(sandbox_id)
        if sandbox is None:
            code = grpc.StatusCode.NOT_FOUND
            await _refuse(context, code, "CWSANDBOX_SANDBOX_NOT_FOUND", f"sandbox {sandbox_id} not found")
            raise AssertionError("abort raises")
        return sandbox


async def _refuse(context: Context, code: Any, reason: str, message: str) -> None:
    """Ends the call with an error in the form of AIP-193, as CoreWeave's service does."""
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=CWSANDBOX_ERROR_DOMAIN))
    status = status_pb2.Status(code=code.value[0], message=message, details=[detail])
    await context.abort(code, message, (("grpc-status-details-bin", status.SerializeToString()),))


async def _feed(requests: AsyncIterator[pb.ExecStreamRequest], command: SandboxProcess) -> None:
    async for request in requests:
        if request.HasField("stdin"):
            await command.write(request.stdin)
        elif request.HasField("close"):
            break
    command.close_stdin()


def _output(is_stdout: bool, data: bytes) -> pb.ExecStreamResponse:
    stream = pb.ExecStreamOutput.STREAM_STDOUT if is_stdout else pb.ExecStreamOutput.STREAM_STDERR
    return pb.ExecStreamResponse(output=pb.ExecStreamOutput(stream=stream, data=data))
