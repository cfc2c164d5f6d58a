"""The boxes of a loopback CoreWeave and their states, by the SDK's own messages."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
import uuid
from collections.abc import Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any

from cwsandbox._proto import sandbox_pb2 as pb

from finqa_cli.testing.coreweave.config import CoreWeaveConfig
from finqa_cli.testing.coreweave.coreweave_commands import Command
from finqa_cli.testing.daytona.dice import Dice

ENDED = (pb.STATE_COMPLETED, pb.STATE_FAILED, pb.STATE_TERMINATED)


class Box:
    """One box: its message, its folder and the commands that run in it."""

    def __init__(self, sandbox_id: str, spec: pb.SandboxSpec, folder: Path) -> None:
        self.message = pb.Sandbox(sandbox_id=sandbox_id, spec=spec)
        self.message.status.state = pb.STATE_CREATING
        self.message.status.create_time.FromNanoseconds(time.time_ns())
        self.folder = folder
        self.commands: set[Command] = set()

    @property
    def id(self) -> str:
        """The service's id."""
        return self.message.sandbox_id

    @property
    def state(self) -> pb.State:
        """As the SDK is told."""
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
        """Ends its commands and it. A failure is seen at once, another end when nothing of the box is left."""
        self.become(state if state == pb.STATE_FAILED else pb.STATE_TERMINATING, reason)
        await asyncio.gather(*(command.end() for command in self.commands))
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
        self.become(state, reason)


class Boxes:
    """All boxes that ever were; ended ones are still known by their id, as in the service."""

    def __init__(self, config: CoreWeaveConfig) -> None:
        self.config = config
        self.dice = Dice(config.seed)
        self._boxes: dict[str, Box] = {}
        self._by_request: dict[str, Box] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, sandbox_id: str) -> Box | None:
        """The box of an id."""
        return self._boxes.get(sandbox_id)

    def tagged(self, tags: Iterable[str], *, ended: bool = False) -> list[Box]:
        """Boxes that carry all these tags, oldest first."""
        wanted = set(tags)
        return [
            box for box in self._boxes.values() if wanted <= set(box.message.spec.tags) and (ended or not box.ended)
        ]

    @property
    def ever(self) -> int:
        """How many were made."""
        return len(self._boxes)

    def reconfigure(self, config: CoreWeaveConfig) -> None:
        """From now on; random streams begin anew."""
        self.config = config
        self.dice = Dice(config.seed)

    def living(self) -> list[Box]:
        """Boxes that have not ended."""
        return self.tagged(())

    def made(self, request: pb.CreateSandboxRequest) -> Box:
        """The box of a create; the same one for the same request id."""
        if request.request_id in self._by_request:
            return self._by_request[request.request_id]
        box = Box(str(uuid.uuid4()), request.sandbox.spec, Path(tempfile.mkdtemp(prefix="loopback-coreweave-")))
        self._boxes[box.id] = box
        if request.request_id:
            self._by_request[request.request_id] = box
        self._later(self._start(box))
        return box

    async def end(self, box: Box) -> None:
        """STATE_TERMINATING at once, STATE_TERMINATED a little later."""
        if box.ended or box.state == pb.STATE_TERMINATING:
            return
        box.become(pb.STATE_TERMINATING)
        self._later(self._finish(box))

    async def kill(self, ids: Collection[str]) -> list[str]:
        """Accident: these boxes fail, with all that runs in them; without ids all."""
        hit = [box for box in self.living() if not ids or box.id in ids]
        await asyncio.gather(*(box.end(pb.STATE_FAILED, "NodeLost: the runner is gone") for box in hit))
        return [box.id for box in hit]

    async def close(self) -> None:
        """Ends everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(box.end(pb.STATE_TERMINATED) for box in self._boxes.values()))

    async def _start(self, box: Box) -> None:
        await asyncio.sleep(self.dice.seconds("start", self.config.start))
        image = box.message.spec.containers[0].image
        if image not in self.config.images:
            await box.end(pb.STATE_FAILED, f"ErrImagePull: Failed to pull image {image}: not found")
        elif self.dice.hit("start_failed", self.config.faults.start_failed):
            await box.end(pb.STATE_FAILED, "ContainerCannotRun: injected")
        elif box.state == pb.STATE_CREATING:
            box.message.status.start_time.FromNanoseconds(time.time_ns())
            box.become(pb.STATE_RUNNING)

    async def _finish(self, box: Box) -> None:
        await asyncio.sleep(self.dice.seconds("end", self.config.end))
        await box.end(pb.STATE_TERMINATED)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
