"""The control of a running loopback CoreWeave: what happened in it, and accidents at the press of a button."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypedDict

import grpc  # type: ignore[import-untyped]

from finqa_cli.testing.coreweave.config import CoreWeaveConfig
from finqa_cli.testing.coreweave.coreweave_sandboxes import Boxes
from finqa_cli.testing.coreweave.coreweave_service import SandboxService

METHOD = "/finqa.testing.CoreWeaveControl/Call"
TIMEOUT_S = 30.0
_NAME = re.compile(r"finqa-[0-9a-f]{12}")


class BoxView(TypedDict):
    """A box that has not ended."""

    id: str
    tags: list[str]
    image: str
    resources: dict[str, str]
    lifetime_s: int
    denied: list[bool]
    commands: int


class Stats(TypedDict):
    """What `stats()` returns.

    Attributes:
        boxes: Boxes that have not ended.
        boxes_ever: Boxes that were ever made.
        duplicates: Living boxes that share their name of ours with another.
        requests: Method -> number.
        faults: Injected faults by kind.
        seen: W&B's entity and project in the last request.
    """

    boxes: list[BoxView]
    boxes_ever: int
    duplicates: int
    requests: dict[str, int]
    faults: dict[str, int]
    seen: dict[str, str]


class CoreWeaveControl:
    """Calls for event loops."""

    def __init__(self, target: str) -> None:
        self._target = target

    async def stats(self) -> Stats:
        """Everything that is counted."""
        stats: Stats = await self._call({"do": "stats"})
        return stats

    async def configure(self, config: CoreWeaveConfig) -> None:
        """Other speed, other faults, counters at 0; boxes and keys stay."""
        await self._call({"do": "configure", "config": config.model_dump(mode="json")})

    async def kill(self, ids: Sequence[str] = ()) -> list[str]:
        """Accident: boxes fail, with all that runs in them; without ids all. Returns the service's ids of those hit."""
        hit: list[str] = await self._call({"do": "kill", "ids": [*ids]})
        return hit

    async def _call(self, request: dict[str, Any]) -> Any:
        return await asyncio.to_thread(self._blocking, json.dumps(request).encode())

    def _blocking(self, request: bytes) -> Any:
        with grpc.insecure_channel(self._target) as channel:
            return json.loads(channel.unary_unary(METHOD)(request, timeout=TIMEOUT_S))


def control_handler(boxes: Boxes, service: SandboxService) -> Any:
    """The server's side, as a gRPC handler."""

    async def call(request: bytes, _context: Any) -> bytes:
        wanted = json.loads(request)
        if wanted["do"] == "kill":
            return json.dumps(await boxes.kill(wanted["ids"])).encode()
        if wanted["do"] == "configure":
            boxes.reconfigure(CoreWeaveConfig.model_validate(wanted["config"]))
            service.requests.clear()
            return b"null"
        return json.dumps(_stats(boxes, service)).encode()

    _, package, method = METHOD.split("/")
    return grpc.method_handlers_generic_handler(package, {method: grpc.unary_unary_rpc_method_handler(call)})


def _stats(boxes: Boxes, service: SandboxService) -> Stats:
    living = boxes.living()
    names = Counter(tag for box in living for tag in box.message.spec.tags if _NAME.fullmatch(tag))
    return Stats(
        boxes=[
            BoxView(
                id=box.id,
                tags=[*box.message.spec.tags],
                image=box.message.spec.containers[0].image,
                resources={
                    "cpu": box.message.spec.containers[0].resource_requirements.limits.cpu,
                    "memory": box.message.spec.containers[0].resource_requirements.limits.memory,
                },
                lifetime_s=box.message.spec.max_lifetime_seconds,
                denied=[box.message.spec.network.deny_egress, box.message.spec.network.deny_ingress],
                commands=len(box.commands),
            )
            for box in living
        ],
        boxes_ever=boxes.ever,
        duplicates=sum(number - 1 for number in names.values()),
        requests=dict(service.requests),
        faults=dict(boxes.dice.hits),
        seen=service.seen,
    )
