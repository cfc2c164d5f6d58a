"""The parts of a run on each node of a cluster and their states, followed through the events of the run."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from finqa_cli.runs.jsonl import read_backwards
from finqa_cli.types.run_events import RunEvent

PLACED_EVENTS = ("engine_nodes", "learner_nodes")
"""Events that list the node of each engine replica, and of each learner process, in the order of their numbers."""

WORKER_EVENTS = ("worker_placed", "worker_lost", "worker_back")
ENGINE_EVENTS = ("engine_left_out", "engine_away", "engine_back")
CHANGES = frozenset({*WORKER_EVENTS, *ENGINE_EVENTS} - {"worker_placed"})
"""Events about the loss or return of a worker or a replica."""

MOST_CHANGES = 50
"""Most events that `RunNodes.changes` keeps."""

FOLLOWED = frozenset({*PLACED_EVENTS, *WORKER_EVENTS, *ENGINE_EVENTS, "run_start", "weights"})


class EngineNodes(RunEvent):
    """Engine replicas were placed on the nodes of a cluster; recorded when the run starts."""

    event: Literal["engine_nodes"]
    nodes: list[str]
    """Address of the node of each replica, in order of their numbers."""


class LearnerNodes(RunEvent):
    """Learner processes were placed on the nodes of a cluster; recorded by the learner."""

    event: Literal["learner_nodes"]
    nodes: list[str]
    """Address of the node of each process, in order of their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One engine replica on a node.

    Attributes:
        number: Number of the replica.
        version: Policy version that it serves.
        left_out: It is excluded and gets no requests.
        left_at: Unix time in seconds at which it was excluded; None if it is not excluded, or the time is not known.
        back: It is in service again after an exclusion.
    """

    number: int
    version: int = 0
    left_out: bool = False
    left_at: float | None = None
    back: bool = False

    @property
    def text(self) -> str:
        """Description of its state."""
        if self.left_out:
            since = time_text(self.left_at, "%H:%M:%S")
            return f"left out since {since}" if since else "left out"
        return f"serves version {self.version}{' again' * self.back}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node and what runs on it.

    Attributes:
        node: Its address.
        replicas: Engine replicas.
        ranks: Numbers of learner processes.
        workers: Numbers of rollout workers.
        lost: Numbers of the rollout workers that were lost and are not back.
    """

    node: str
    replicas: tuple[ReplicaState, ...] = ()
    ranks: tuple[int, ...] = ()
    workers: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


@dataclass(slots=True)
class RunNodes:
    """Follows the events of a run. The events of a run on one machine name no nodes.

    Attributes:
        changes: The last `CHANGES` events as recorded, oldest first, also those of earlier sessions of the run.
    """

    changes: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_CHANGES))

    _replicas: dict[int, ReplicaState] = field(default_factory=dict)
    _placed: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    _lost: set[int] = field(default_factory=set)

    def take(self, record: Mapping[str, Any]) -> None:
        """Receive the next event, as it is recorded; damaged events are ignored."""
        name, nodes = str(record.get("event")), record.get("nodes")
        if name in CHANGES:
            self.changes.append(record)
        if name == "run_start":  # nothing of an earlier session runs
            self._replicas.clear()
            self._placed.clear()
            self._lost.clear()
        elif name in PLACED_EVENTS and isinstance(nodes, list):
            self._placed[name] = dict(enumerate(map(str, nodes)))
            if name == "engine_nodes":
                self._replicas = {number: ReplicaState(number=number) for number in range(len(nodes))}
        elif name == "weights" and isinstance(version := record.get("version"), int):
            serving = {number: each for number, each in self._replicas.items() if not each.left_out}
            self._replicas |= {number: replace(each, version=version) for number, each in serving.items()}
        elif name in ENGINE_EVENTS:
            one = record.get("replica")  # absent: the only replica, or all of them
            for number in [one] if isinstance(one, int) else list(self._replicas):
                self._change(number, record)
        elif name in WORKER_EVENTS and isinstance(worker := record.get("worker"), int) and record.get("node"):
            self._placed["workers"][worker] = str(record["node"])
            (self._lost.add if name == "worker_lost" else self._lost.discard)(worker)

    def states(self) -> tuple[NodeState, ...]:
        """Return the nodes, sorted by address, with what is on them."""
        on: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for name, places in self._placed.items():
            for number, node in sorted(places.items()):
                on[node][name].append(number)
        return tuple(
            NodeState(
                node=node,
                replicas=tuple(self._replicas[number] for number in parts["engine_nodes"]),
                ranks=tuple(parts["learner_nodes"]),
                workers=tuple(parts["workers"]),
                lost=tuple(number for number in parts["workers"] if number in self._lost),
            )
            for node, parts in sorted(on.items())
        )

    def _change(self, number: int, record: Mapping[str, Any]) -> None:
        before = self._replicas.get(number)
        if before is None:
            return
        if record["event"] != "engine_back":
            at = record.get("time")
            since = float(at) if isinstance(at, int | float) else None
            self._replicas[number] = replace(before, left_out=True, left_at=since)
            return
        version = record.get("version")
        served = version if isinstance(version, int) else before.version
        self._replicas[number] = replace(before, left_out=False, left_at=None, back=True, version=served)
        if node := record.get("node"):
            self._placed["engine_nodes"][number] = str(node)


def time_text(at: object, form: str) -> str:
    """Return a Unix time as text in the local time zone; empty if the value is not a time."""
    try:
        return f"{datetime.fromtimestamp(at):{form}}"  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def read_nodes(run: Path) -> RunNodes:
    """Return the nodes of a run from its events; other events and damaged lines are skipped."""
    return follow_backwards(each for each in read_backwards(run / "events.jsonl") if str(each.get("event")) in FOLLOWED)


def follow_backwards(events: Iterable[Mapping[str, Any]]) -> RunNodes:
    """Return the nodes after these events, which are in reverse order."""
    nodes = RunNodes()
    for event in reversed(list(events)):
        nodes.take(event)
    return nodes
