"""The gRPC service of a loopback CoreWeave: the methods of `coreweave.sandbox.v1.SandboxService` that executing needs.

The SDK's own generated classes carry it. Methods that are not here answer UNIMPLEMENTED, as does ConnectSandbox, so
that the SDK sends executions through the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc  # type: ignore[import-untyped]
from cwsandbox._error_info import CWSANDBOX_ERROR_DOMAIN
from cwsandbox._proto import sandbox_pb2 as pb
from cwsandbox._proto import sandbox_pb2_grpc
from google.protobuf import any_pb2  # type: ignore[import-untyped]
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from finqa_cli.testing.coreweave.coreweave_commands import NOT_FOUND, Command
from finqa_cli.testing.coreweave.coreweave_sandboxes import Box, Boxes

Context = Any
"""grpc.aio.ServicerContext, which has no types."""


class SandboxService(sandbox_pb2_grpc.SandboxServiceServicer):
    """Answers as the service does, from one table of boxes."""

    def __init__(self, boxes: Boxes, api_key: str) -> None:
        self._boxes = boxes
        self._api_key = api_key
        self.requests: Counter[str] = Counter()
        self.seen: dict[str, str] = {}

    async def CreateSandbox(self, request: pb.CreateSandboxRequest, context: Context) -> pb.Sandbox:
        """One box for one request id, however often it is asked for."""
        await self._admit("CreateSandbox", context)
        boxes, faults = self._boxes, self._boxes.config.faults
        if not request.sandbox.spec.containers:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "CWSANDBOX_INVALID_REQUEST", "no container")
        if boxes.dice.hit("busy", faults.busy):
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            await _refuse(context, code, "CWSANDBOX_RUNNER_CAPACITY_EXHAUSTED", "every runner is full")
        if len(boxes.living()) >= boxes.config.most_boxes:
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            await _refuse(context, code, "CWSANDBOX_QUOTA_EXCEEDED", "the organisation's boxes are used up")
        box = boxes.made(request)
        await asyncio.sleep(boxes.dice.seconds("create", boxes.config.create))
        if boxes.dice.hit("hang", faults.hang):
            await asyncio.Event().wait()  # until the client gives up
        if boxes.dice.hit("lost_reply", faults.lost_reply):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        return box.message

    async def GetSandbox(self, request: pb.GetSandboxRequest, context: Context) -> pb.Sandbox:
        """The box as it is now, also after its end."""
        await self._admit("GetSandbox", context)
        return (await self._found(request.sandbox_id, context)).message

    async def ListSandboxes(self, request: pb.ListSandboxesRequest, context: Context) -> pb.ListSandboxesResponse:
        """By tags, a page at a time."""
        await self._admit("ListSandboxes", context)
        found = self._boxes.tagged(request.tags, ended=request.show_terminated)
        first = int(request.page_token or 0)
        after = first + self._boxes.config.page_size
        return pb.ListSandboxesResponse(
            sandboxes=[box.message for box in found[first:after]], next_page_token=str(after) if found[after:] else ""
        )

    async def DeleteSandbox(self, request: pb.DeleteSandboxRequest, context: Context) -> pb.DeleteSandboxResponse:
        """Answers at once; the box ends a little later."""
        await self._admit("DeleteSandbox", context)
        box = self._boxes.find(request.sandbox_id)
        if box is None and request.allow_missing:
            return pb.DeleteSandboxResponse()
        box = box or await self._found(request.sandbox_id, context)
        await self._boxes.end(box)
        return pb.DeleteSandboxResponse(sandbox=box.message)

    async def ConnectSandbox(self, request: pb.ConnectSandboxRequest, context: Context) -> None:
        """No direct connections to boxes here."""
        await self._admit("ConnectSandbox", context)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no direct data plane")

    async def StreamExec(
        self, requests: AsyncIterator[pb.ExecStreamRequest], context: Context
    ) -> AsyncIterator[pb.ExecStreamResponse]:
        """One command: ready, output as it comes, exit. A stream that breaks off ends the command."""
        await self._admit("StreamExec", context)
        first = await anext(requests)
        box = await self._found(first.init.sandbox_id, context)
        if box.state != pb.STATE_RUNNING:
            code = grpc.StatusCode.FAILED_PRECONDITION
            await _refuse(context, code, "CWSANDBOX_SANDBOX_NOT_RUNNING", f"sandbox {box.id} does not run")
        try:
            command = await Command.start(first.init.command, box.folder)
        except OSError as error:
            yield _output(False, f"{first.init.command[0]}: {error.strerror}\n".encode())
            yield pb.ExecStreamResponse(exit=pb.ExecStreamExit(exit_code=NOT_FOUND))
            return
        box.commands.add(command)
        feeding = asyncio.create_task(_feed(requests, command))
        try:
            yield pb.ExecStreamResponse(ready=pb.ExecStreamReady())
            if self._boxes.dice.hit("execution_cut", self._boxes.config.faults.execution_cut):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            async for is_stdout, data in command.output():
                yield _output(is_stdout, data)
            exit_code = await command.exit_code()
            if box.state != pb.STATE_RUNNING:
                code = grpc.StatusCode.UNAVAILABLE
                await _refuse(context, code, "CWSANDBOX_RUNNER_UNAVAILABLE", f"sandbox {box.id} is gone")
            yield pb.ExecStreamResponse(exit=pb.ExecStreamExit(exit_code=exit_code))
        finally:
            feeding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feeding
            await asyncio.shield(command.end())
            box.commands.discard(command)

    async def _admit(self, method: str, context: Context) -> None:
        """Counts the request, looks at the key, and fails as often as told to."""
        self.requests[method] += 1
        given = dict(context.invocation_metadata())
        self.seen = {name: str(value) for name, value in given.items() if name in ("x-entity-id", "x-project-name")}
        wandb_key = self._boxes.config.wandb_key
        accepted = hmac.compare_digest(str(given.get("authorization", "")), f"Bearer {self._api_key}")
        if not (accepted or (wandb_key and given.get("x-wandb-api-key") == wandb_key)):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the key is not known")
        if self._boxes.dice.hit("unavailable", self._boxes.config.faults.unavailable):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "upstream connect error")

    async def _found(self, sandbox_id: str, context: Context) -> Box:
        box = self._boxes.find(sandbox_id)
        if box is None:
            code = grpc.StatusCode.NOT_FOUND
            await _refuse(context, code, "CWSANDBOX_SANDBOX_NOT_FOUND", f"sandbox {sandbox_id} not found")
            raise AssertionError("abort raises")
        return box


async def _refuse(context: Context, code: Any, reason: str, message: str) -> None:
    """Ends the call with an error in the form of AIP-193, as the service does."""
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=CWSANDBOX_ERROR_DOMAIN))
    status = status_pb2.Status(code=code.value[0], message=message, details=[detail])
    await context.abort(code, message, (("grpc-status-details-bin", status.SerializeToString()),))


async def _feed(requests: AsyncIterator[pb.ExecStreamRequest], command: Command) -> None:
    async for request in requests:
        if request.HasField("stdin"):
            await command.write(request.stdin)
        elif request.HasField("close"):
            break
    command.close_stdin()


def _output(is_stdout: bool, data: bytes) -> pb.ExecStreamResponse:
    stream = pb.ExecStreamOutput.STREAM_STDOUT if is_stdout else pb.ExecStreamOutput.STREAM_STDERR
    return pb.ExecStreamResponse(output=pb.ExecStreamOutput(stream=stream, data=data))
