"""`ray:NAME` for learners: its processes are actors of a Ray cluster, its files are sent through the object store."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import structlog
from pydantic import BaseModel
from ray.exceptions import RayError, RayTaskError

from finqa_cli.contracts import Learner, LearnerContext, LearnerEvents
from finqa_cli.errors import FinqaError, LearnerProcessError
from finqa_cli.local_models import local_model
from finqa_cli.types import Batch, FloatRow, Loss, PolicyVersion, Sample, UpdateReport
from finqa_ray import cluster
from finqa_ray.cluster import Cluster
from finqa_ray.folder_files import Delivered, Inbox, spans
from finqa_ray.rank_actor import Abilities, Place, RankActor

log = structlog.get_logger(__name__)

WATCH_S = 1.0
"""Seconds between two checks whether the watch must end."""

CLOSE_S = 15.0
"""Seconds that the ranks may take to end by themselves."""


def __getattr__(name: str) -> Any:
    """The learner of this name on a cluster: a class that takes its options and a context."""
    if name.startswith("_"):
        raise AttributeError(name)
    return partial(RayLearner, name)


class RayLearner(Learner):
    """A learner whose processes run on nodes: one process, or several that train together.

    No files are shared: versions and states are sent as bytes, and this process writes and reads the folders. When a
    rank is gone, the others are ended, and the call in progress (between calls, the run) gets a `LearnerProcessError`.
    """

    starts_processes = True
    loads_model = True

    def __init__(self, name: str, config: BaseModel | None, context: LearnerContext) -> None:
        self._name, self._config, self._context = name, config, context
        self._cluster: Cluster | None = None
        self._ranks: list[Any] = []
        self._serving: list[Any] = []
        self._places: list[Place] = []
        self._able: Abilities | None = None
        self._events: LearnerEvents | None = None
        self._failure: FinqaError | None = None
        self._deliveries = 0
        self._closing = threading.Event()
        self._watch: threading.Thread | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Address of the node of each rank."""
        return tuple(place.node for place in self._places)

    @property
    def keeps_reference(self) -> bool:  # type: ignore[override]
        """Whether the wrapped learner still knows the policy that training began from."""
        return self._started().keeps_reference

    @property
    def has_value_function(self) -> bool:  # type: ignore[override]
        """Whether the wrapped learner has a value function."""
        return self._started().has_value_function

    def start(self) -> None:
        """Connects to the cluster, places the ranks and starts their learners. Idempotent.

        Raises:
            ConfigError: The cluster is too small, a node has another finqa, or model or options are wrong.
            ServiceUnavailableError: There is no cluster.
            LearnerProcessError: A rank ended.
        """
        if self._able is None:
            self._cluster = self._cluster or cluster.join(self._context.cluster)
            self._able = self._begin(self._cluster)

    def update(self, batch: Batch, loss: Loss) -> UpdateReport:
        """One optimizer step, in all ranks."""
        found: UpdateReport = self._call("update", batch, loss)
        return found

    def logprobs(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """Scores as the wrapped learner does."""
        return self._scores("logprobs", samples)

    def reference_logprobs(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """Scores as the wrapped learner does."""
        return self._scores("reference_logprobs", samples)

    def values(self, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        """Scores as the wrapped learner does."""
        return self._scores("values", samples)

    def packs(self) -> bool:
        """Whether the wrapped learner packs a micro-batch into one row without padding."""
        return self._started().packs

    def publish(self, folder: Path, number: int) -> PolicyVersion:
        """Writes the current policy, as rank 0 made it, into a folder of this machine."""
        self.start()
        policy: PolicyVersion
        policy, sizes = self._ask(self._ranks[0].publish, number)
        self._fetch(sizes, folder)
        if policy.adapter is None:
            return replace(policy, model=str(folder))
        return replace(policy, model=self._context.model, adapter=folder)

    def save(self, folder: Path) -> None:
        """Writes the state of the learner into a folder of this machine."""
        self.start()
        self._fetch(self._ask(self._ranks[0].save), folder)

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote, in all ranks; the nodes need not have access to the folder."""
        self.start()
        rank = self._ranks[0]
        self._ask(rank.load, self._deliver(folder, rank))

    def report_to(self, events: LearnerEvents) -> None:
        """Reports the events of the wrapped learner, and when a rank is gone."""
        self._events = events

    def close(self) -> None:
        """Ends the ranks. Idempotent."""
        if self._cluster is None:
            return
        self._closing.set()
        joined, ranks, self._cluster, self._ranks = self._cluster, self._ranks, None, []
        if ranks and self._able is not None and self._failure is None:
            ending = [ranks[0].close.remote(), *self._serving]
            ray.wait(ending, num_returns=len(ending), timeout=CLOSE_S)
        for rank in ranks:
            ray.kill(rank)
        if self._watch is not None:
            self._watch.join()
        if ranks:
            joined.release(self._group)
        cluster.leave(joined)

    def _deliver(self, folder: Path, rank: Any) -> Delivered:
        """Sends a folder to a rank's node, part by part."""
        assert self._cluster is not None, "its ranks have been placed"
        self._deliveries += 1
        delivery, sizes = self._deliveries, dict[str, int]()
        for part, content in self._cluster.sent.of(folder):
            self._ask(rank.receive, delivery, part, content)
            sizes[part.name] = part.start + part.size
        return Delivered(delivery=delivery, sizes=sizes)

    def _fetch(self, sizes: Mapping[str, int], folder: Path) -> None:
        """Writes files of rank 0 into a folder of this machine, part by part."""
        inbox, rank = Inbox(folder.parent), self._ranks[0]
        try:
            for name, size in sizes.items():
                for start, count in spans(size):
                    inbox.receive(1, *self._ask(rank.part, name, start, count))
            inbox.take(Delivered(delivery=1, sizes=sizes), folder.name)
        finally:
            inbox.clear()
        self._ask(rank.forget)

    def _models(self) -> list[str]:
        """The base model on the node of each rank; files of a folder that a node lacks are sent once for all its ranks.

        Raises:
            StorageError: The folder cannot be read here, or cannot be written there.
        """
        model, there = self._context.model, dict[str, str]()
        digests = cluster.digest_folder(model)
        for rank, place in zip(self._ranks, self._places, strict=True):
            if place.node not in there:
                lacks = bool(digests) and self._ask(rank.lacks, model, digests)
                sent = self._deliver(Path(local_model(model)), rank) if lacks else None
                there[place.node] = self._ask(rank.take_model, sent) if sent is not None else model
        return [there[place.node] for place in self._places]

    def _begin(self, joined: Cluster) -> Abilities:
        size, name = self._context.processes, self._name
        resources = cluster.bundle(name, "learner", self._config, gpus=1)
        group = joined.place(self._group, [resources] * size, "PACK")
        self._ranks = [
            ray.remote(RankActor).options(**cluster.options(group, rank, resources)).remote(name, rank, size)
            for rank in range(size)
        ]
        self._places = [self._ask(rank.place) for rank in self._ranks]
        for place in self._places:
            cluster.check_version(place.version, place.node)
        leader, models = self._places[0], self._models()
        self._serving = others = [
            rank.serve.remote(leader, model) for rank, model in zip(self._ranks[1:], models[1:], strict=True)
        ]
        if others:
            self._watch = threading.Thread(target=self._look, args=(others,), name="learner-ranks", daemon=True)
            self._watch.start()
        context = replace(self._context, devices=(), logs=None)
        options = self._config.model_dump(exclude_unset=True) if self._config is not None else {}
        able: Abilities = self._ask(self._ranks[0].start, leader, options, context, models[0])
        # Log: The learner's processes on a Ray cluster are connected.
        log.info("a learner runs", nodes=self.nodes)
        if self._events is not None:
            self._events.event("learner_nodes", {"nodes": list(self.nodes)})
        return able

    @property
    def _group(self) -> str:
        return f"{self._context.processes} learner processes"

    def _started(self) -> Abilities:
        self.start()
        assert self._able is not None
        return self._able

    def _scores(self, method: str, samples: Sequence[Sample]) -> tuple[FloatRow, ...]:
        found: tuple[FloatRow, ...] = self._call(method, samples)
        return found

    def _call(self, method: str, *arguments: Any) -> Any:
        self.start()
        result, events = self._ask(self._ranks[0].call, method, *arguments)
        for name, facts in events:
            if self._events is not None:
                self._events.event(name, facts)
        return result

    def _ask(self, method: Any, *arguments: Any) -> Any:
        try:
            return ray.get(method.remote(*arguments))
        except RayTaskError as error:
            found = cluster.cause(error)
            if isinstance(found, FinqaError):
                raise found from None
            raise FinqaError(f"Learner {self._name!r}: {type(found).__name__}: {found}") from error
        except RayError as error:
            raise self._failure or self._gone(0, error) from error

    def _look(self, others: Sequence[Any]) -> None:
        """Ends all ranks when a rank above 0 ended: NCCL would wait for it."""
        ended: list[Any] = []
        while not ended and not self._closing.is_set():
            ended, _ = ray.wait(list(others), timeout=WATCH_S)
        if self._closing.is_set():
            return
        reason: Exception | None = None
        try:
            ray.get(ended[0])
        except RayError as error:
            reason = cluster.cause(error) if isinstance(error, RayTaskError) else error  # type: ignore[assignment]
        self._failure = self._gone(list(others).index(ended[0]) + 1, reason)
        for rank in self._ranks:
            ray.kill(rank)
        if self._events is not None:
            self._events.failed(self._failure)

    def _gone(self, rank: int, reason: Exception | None) -> FinqaError:
        where = f" on node {self._places[rank].node}" if rank < len(self._places) else ""
        why = str(reason).splitlines()[0] if reason is not None and str(reason) else "it ended early"
        return LearnerProcessError(f"Learner process {rank + 1} of {self._context.processes}{where} is gone: {why}")
