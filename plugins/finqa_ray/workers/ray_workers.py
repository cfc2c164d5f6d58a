"""Rollout workers as actors of a Ray cluster, one processor core each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from finqa_cli import __version__
from finqa_cli.errors import FinqaError, LostWorkerError
from finqa_ray import cluster
from finqa_ray.cluster import Cluster
from finqa_ray.workers.worker_processes import WorkerProcess, WorkerProcesses

CONCURRENCY = 100
"""Largest number of concurrent calls of an actor. One waits for events, one delivers, a few occur at start and end."""

RESOURCES = {"CPU": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """Where a worker runs, and its version of finqa."""

    version: str
    node: str


class WorkerActor:
    """The process of a worker on a node: calls methods of one object by name, in one event loop."""

    def __init__(self, make: Callable[[], object]) -> None:
        """`make` makes the object at the first call, in the event loop."""
        self._make = make
        self._made: object | None = None

    async def place(self) -> WorkerPlace:
        """Return where this process runs."""
        return WorkerPlace(version=__version__, node=ray.util.get_node_ip_address())

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object."""
        if self._made is None:
            self._made = self._make()
        return await getattr(self._made, method)(*arguments)


class RayWorker(WorkerProcess):
    """An actor that Ray does not restart: each start of a worker is a new actor."""

    def __init__(self, number: int, actor: Any) -> None:
        self._number, self._actor = number, actor

    async def begin(self) -> None:
        """Wait until the actor runs.

        Raises:
            ConfigError: Its node has another finqa.
            LostWorkerError: The actor ended.
        """
        place: WorkerPlace = await self._ask(self._actor.place)
        cluster.check_version(place.version, place.node)
        self.node = place.node

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker; see `WorkerProcess`."""
        return await self._ask(self._actor.call, method, *arguments)

    def kill(self) -> None:
        """End the process at once."""
        with contextlib.suppress(RayError):
            ray.kill(self._actor)

    async def _ask(self, method: Any, *arguments: Any) -> Any:
        who = f"Rollout worker {self._number}" + (f" on node {self.node}" if self.node else "")
        return await cluster.answer_of(method.remote(*arguments), who, failed=FinqaError, gone=LostWorkerError)


class RayWorkers(WorkerProcesses):
    """The nodes of a cluster, over which Ray spreads the workers."""

    def __init__(self, address: str, count: int) -> None:
        self._address, self._count = address, count
        self._cluster: Cluster | None = None
        self._group: Any = None

    async def open(self) -> None:
        """Connect to the cluster, and reserve a core for each worker."""
        await asyncio.to_thread(self._open)

    async def start(self, number: int, make: Callable[[], object]) -> WorkerProcess:
        """Start an actor on the core with this number, which Ray moves to another node if its node is gone."""
        placed = cluster.options(self._group, number, RESOURCES)
        made = ray.remote(WorkerActor).options(**placed, max_restarts=0, max_concurrency=CONCURRENCY)
        worker = RayWorker(number, made.remote(make))
        try:
            await worker.begin()
        except BaseException:
            worker.kill()
            raise
        return worker

    async def close(self) -> None:
        """Release the cores, which ends the actors on them, and leave the cluster. Idempotent."""
        joined, self._cluster = self._cluster, None
        if joined is not None:
            if self._group is not None:
                await asyncio.to_thread(joined.release, self._name)
            await asyncio.to_thread(cluster.leave, joined)

    @property
    def _name(self) -> str:
        return f"{self._count} rollout workers"

    def _open(self) -> None:
        self._cluster = cluster.join(self._address)
        self.here = ray.util.get_node_ip_address()
        self._group = self._cluster.place(self._name, [RESOURCES] * self._count, "SPREAD")
