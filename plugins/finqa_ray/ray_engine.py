"""`ray:NAME` for engines: one replica of a token engine as an actor of a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import structlog
from pydantic import BaseModel
from ray.exceptions import RayError

from finqa_cli.backoff import Backoff
from finqa_cli.contracts import EngineContext, EngineLoan, EngineRoute, TokenEngine
from finqa_cli.errors import ConfigError, EngineError, FinqaError, StorageError, UnreachableEngineError
from finqa_cli.local_models import local_model
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion
from finqa_ray import cluster
from finqa_ray.cluster import Cluster
from finqa_ray.engine_actor import EngineActor, Started
from finqa_ray.folder_files import Delivered

log = structlog.get_logger(__name__)

CONCURRENCY = 1000
"""Largest number of concurrent calls of an actor; it queues the others."""

RETRIES = Backoff(first_s=0.5, longest_s=5.0)
"""Waits between tries to start a replica whose process or node is gone."""

CLOSE_S = 15.0
"""Seconds that an engine may take to close before its process is ended."""

HEARD_S = 5.0
"""Seconds between two reports to the engine that its server answers rollout workers."""

MOST_EPISODES = 16_384


@dataclass(slots=True, eq=False)
class _Held:
    """A loan of the node's engine, and the number of its users on the controller."""

    generation: int
    number: int
    route: EngineRoute | None
    users: int = 0


def __getattr__(name: str) -> Any:
    """The engine of this name on a cluster: a class that takes its options and a context."""
    if name.startswith("_"):
        raise AttributeError(name)
    return partial(RayEngine, name)


class RayEngine(TokenEngine):
    """A replica that runs on a node.

    The controller calls it through Ray. When its process or node is gone, requests end with `UnreachableEngineError`,
    so that a set of replicas retries them elsewhere. Ray restarts the process where resources are free, and a task of
    the controller then starts the engine and loads the version that it served. Calls contain the generation of that
    start, so that replies of an earlier process are ignored.
    """

    reports_return = True
    probe_tolerance = "measured"  # the weights are in a process on another machine

    def __init__(self, name: str, config: BaseModel | None, context: EngineContext) -> None:
        self._name, self._config, self._context = name, config, context
        self.loads_model = not getattr(config, "addresses", ())
        self._cluster: Cluster | None = None
        self._actor: Any = None
        self._generation = 0
        self._served = PolicyVersion(number=0, model=context.model)
        self._back = asyncio.Event()
        self._starting = asyncio.Lock()
        self._reviving: asyncio.Task[None] | None = None
        self._started: Started | None = None
        self._deliveries = 0
        self._rounds = False
        self._held: _Held | None = None
        self._heard_at = float("-inf")
        self._usage: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._closed = False

    async def start(self) -> None:
        """Connects to the cluster, places the replica and starts its engine. Idempotent.

        Raises:
            ConfigError: The cluster is too small, the engine runs in lockstep, or the node has another finqa.
            ServiceUnavailableError: There is no cluster.
        """
        async with self._starting:
            if self._closed:
                raise EngineError("The engine is closed.")
            if self._actor is None:
                await asyncio.to_thread(self._place)
                await self._begin()
                self._back.set()

    @property
    def max_context(self) -> int:
        """Longest prompt plus completion in tokens; 0 before `start`."""
        return self._started.max_context if self._started is not None else 0

    @property
    def node(self) -> str:
        """Address of the node that it runs on; empty before `start`."""
        return self._started.node if self._started is not None else ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The node that it runs on; none before `start`."""
        return (self.node,) if self.node else ()

    async def generate(self, request: GenerateRequest) -> Completion:
        """Samples one completion under the loaded policy version. Cancellation frees its place.

        Raises:
            EngineError: The engine failed.
            UnreachableEngineError: The process or node of the engine is gone.
        """
        completion, usage = await self._call("generate", request)
        if usage:
            episode = request.key.partition("#")[0]
            self._usage[episode] = usage
            self._usage.move_to_end(episode)
            if len(self._usage) > MOST_EPISODES:
                self._usage.popitem(last=False)
        found: Completion = completion
        return found

    async def load(self, policy: PolicyVersion) -> None:
        """Sends a version to the replica's node, and loads it into the engine.

        Raises:
            EngineError: The version cannot be loaded; the old version keeps serving.
            StorageError: The files cannot be read here, or arrived damaged; the old version keeps serving.
            UnreachableEngineError: The process or node of the engine is gone.
        """
        before, self._served = self._served, policy  # also if the process is gone: it restarts with this version
        try:
            await self._guarded(partial(self._load, policy))
        except (EngineError, StorageError):
            self._served = before
            raise
        if self._context.lends:
            self._hold(*await self._call("lend"))

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        """The request's completion under the current version, without cached prefixes.

        Raises:
            EngineError: The engine failed.
            UnreachableEngineError: The process or node of the engine is gone.
        """
        return {0: await self._call("probe", request)}

    async def returned(self) -> None:
        """Waits until the replica runs and serves the version that it served last."""
        await self._back.wait()

    def lend(self) -> EngineLoan | None:
        """Lends the server of the node's engine with the version that it loaded last; None if it lends none."""
        held = self._held
        if held is None or held.route is None or not self._back.is_set():
            return None
        held.users += 1

        def end() -> None:
            held.users -= 1
            self._end_loan(held)

        return EngineLoan(routes=(held.route,), end=end, heard=self._heard)

    def usage(self, episode: str) -> Mapping[str, Any]:
        """The usage of the episode, as the engine reported it with the last completion."""
        return self._usage.get(episode, {})

    async def close(self) -> None:
        """Ends the engine and its process. Idempotent."""
        self._closed = True
        if self._reviving is not None:
            self._reviving.cancel()
            await asyncio.gather(self._reviving, return_exceptions=True)
        async with self._starting:
            if self._cluster is None:
                return
            joined, actor, self._cluster, self._actor = self._cluster, self._actor, None, None
            if actor is not None and self._back.is_set():
                with contextlib.suppress(RayError, TimeoutError):
                    async with asyncio.timeout(CLOSE_S):
                        await actor.close.remote()
            await asyncio.to_thread(self._release, joined, actor)

    def _place(self) -> None:
        self._cluster = joined = cluster.join(self._context.cluster)
        context, group = self._context, None
        try:
            gpus = context.tensor_parallel_size
            resources = cluster.bundle(self._name, "engine", self._config, gpus=gpus)
            group = joined.place(self._group, [resources] * context.replicas, "SPREAD")
            sent = replace(
                context,
                devices=tuple(range(gpus)) if "GPU" in resources else (),
                home=None,
                log_dir=None,
                demonstrate=None,
                sleep=False,
            )
            options = self._config.model_dump(exclude_unset=True) if self._config is not None else {}
            placed = cluster.options(group, context.replica, resources)
            made = ray.remote(EngineActor).options(**placed, max_restarts=-1, max_concurrency=CONCURRENCY)
            self._actor = made.remote(self._name, options, sent)
        except BaseException:
            if group is not None:
                joined.release(self._group)
            self._cluster = None
            cluster.leave(joined)
            raise

    @property
    def _group(self) -> str:
        return f"{self._context.replicas} engine replicas"

    def _release(self, joined: Cluster, actor: Any) -> None:
        if actor is not None:
            ray.kill(actor)
            joined.release(self._group)
        cluster.leave(joined)

    async def _begin(self) -> None:
        """Starts the engine in the actor's process as a new generation, with the version that it served."""
        self._generation += 1
        generation, model = self._generation, self._context.model
        lacks = await self._ask(self._actor.begin, generation, await asyncio.to_thread(cluster.digest_folder, model))
        delivered = await self._deliver(Path(local_model(model)), generation) if lacks else None
        started: Started = await self._ask(self._actor.start, generation, delivered)
        cluster.check_version(started.version, started.node)
        if started.lockstep:
            raise ConfigError(
                f"Engine {self._name!r} runs in lockstep, which needs the seats of all episodes in its own process.",
                remedy="--set engine.options.lockstep=false",
            )
        self._rounds = started.adapter_dtype == "bfloat16"
        loaded = replace(self._served, adapter=None)
        while loaded != self._served:  # a newer one may be published meanwhile
            loaded = self._served
            await self._load(loaded, generation)
        self._started = started
        if self._context.lends:
            self._hold(*await self._ask(self._actor.lend, self._generation))
        # Log: An engine replica on a Ray cluster starts to serve.
        log.info("an engine runs", replica=self._context.replica, node=started.node, generation=self._generation)

    def _hold(self, number: int, route: EngineRoute | None) -> None:
        """Replaces the loan of the previous version, which ends when its last user ends."""
        before, self._held = self._held, _Held(self._generation, number, route)
        if before is not None:
            self._end_loan(before)

    def _end_loan(self, held: _Held) -> None:
        if held is not self._held and not held.users and held.generation == self._generation and self._actor:
            self._actor.end_loan.remote(held.number)  # no reply needed: a node that is gone has no loans

    def _heard(self, replica: int) -> None:
        now = time.monotonic()
        if now - self._heard_at > HEARD_S and self._actor is not None:
            self._heard_at = now
            self._actor.heard.remote()

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await self._guarded(lambda generation: self._ask(getattr(self._actor, method), generation, *arguments))

    async def _guarded(self, work: Callable[[int], Awaitable[Any]]) -> Any:
        """Runs calls to the process of the current generation; replies of an earlier process are ignored."""
        if self._actor is None:
            raise EngineError("The engine is closed." if self._closed else "The engine is not started.")
        generation = self._generation
        if self._back.is_set():
            try:
                answer = await work(generation)
            except UnreachableEngineError as error:
                self._lost(generation, error)
                raise
            if generation == self._generation and self._back.is_set():
                return answer
        raise UnreachableEngineError(f"Engine replica {self._context.replica} is gone, and is being started again.")

    async def _ask(self, method: Any, *arguments: Any) -> Any:
        who = f"Engine replica {self._context.replica}" + (f" on node {self.node}" if self.node else "")
        return await cluster.answer_of(method.remote(*arguments), who, failed=EngineError, gone=UnreachableEngineError)

    def _lost(self, generation: int, error: UnreachableEngineError) -> None:
        """Begins to restart the replica, unless that is in progress or the call was of an earlier generation."""
        if generation != self._generation or not self._back.is_set() or self._closed:
            return
        # Log: The process of an engine replica on a Ray cluster ended; it is started again.
        log.warning("an engine is gone", replica=self._context.replica, reason=error.message)
        self._back.clear()
        self._reviving = asyncio.create_task(self._revive())

    async def _revive(self) -> None:
        tries = 0
        while True:
            try:
                await self._begin()
            except FinqaError as error:
                tries += 1
                # Log: It could not be started again yet.
                log.info("an engine is not back", replica=self._context.replica, reason=error.message)
                await asyncio.sleep(RETRIES.pause_s(tries))
            else:
                self._back.set()
                return

    async def _load(self, policy: PolicyVersion, generation: int) -> None:
        """Sends the adapter of a version, or its model if it has none, and loads it in the process."""
        base = _is_same(policy.model, self._context.model)
        policy = replace(policy, model=self._context.model) if base else policy
        delivered = None
        if policy.adapter is not None:
            delivered = await self._deliver(policy.adapter, generation, rounded=self._rounds)
        elif not base:
            delivered = await self._deliver(Path(policy.model), generation)
        await self._ask(self._actor.load, generation, policy, delivered)

    async def _deliver(self, folder: Path, generation: int, *, rounded: bool = False) -> Delivered:
        """Sends a folder part by part. While the node writes a part, the next one is read."""
        if self._cluster is None:
            raise EngineError("The engine is closed.")
        self._deliveries += 1
        delivery, sizes = self._deliveries, dict[str, int]()
        parts = self._cluster.sent.of(folder, rounded=rounded)
        under_way: asyncio.Task[Any] | None = None
        try:
            while (found := await asyncio.to_thread(next, parts, None)) is not None:
                part, content = found
                if under_way is not None:
                    await under_way
                answer = self._ask(self._actor.receive, generation, delivery, part, content)
                under_way = asyncio.create_task(answer)
                sizes[part.name] = part.start + part.size
            if under_way is not None:
                await under_way
        finally:
            if under_way is not None:
                under_way.cancel()
                await asyncio.gather(under_way, return_exceptions=True)
        return Delivered(delivery=delivery, sizes=sizes)


def _is_same(one: str, other: str) -> bool:
    """Whether two names are equal, or paths of the same folder."""
    return one == other or (Path(one).is_dir() and Path(one).resolve() == Path(other).resolve())
