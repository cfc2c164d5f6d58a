"""The placement plan of a cluster: which nodes get which replicas and learner processes, with their memory. Pure.

Memory is planned as on one machine with as many devices, see `placement_plan`. This module assigns replicas and learner
processes to nodes with the strategies of Ray: replicas are spread over the nodes (SPREAD), and learner processes are on
as few nodes as possible (PACK). Each replica and each learner process takes one CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from finqa_cli.placement.memory_formulas import GIB
from finqa_cli.placement.memory_formulas import weights as weight_bytes
from finqa_cli.placement.placement_plan import TINY, TOKENS, USABLE, WEIGHTS_SHARE, change, plan, possible_changes
from finqa_cli.placement.placement_types import (
    Device,
    EngineKind,
    EnginePlan,
    LearnerPlan,
    NodePlan,
    Placement,
    Refusal,
    Request,
    Workload,
    count_of,
)
from finqa_cli.types import Architecture, NodeFacts

CPU_BYTES = 4
"""Bytes per parameter in the main memory of a replica or learner process: at most float32 on the CPU."""

SIZES = (1, 2, 4, 8, 16)
"""GPUs that a replica may have."""

LISTED = 8
"""Most nodes that a message lists."""


def plan_on_nodes(
    nodes: Sequence[NodeFacts], model: Architecture, engine: EngineKind, work: Workload, wishes: Request
) -> Placement | Refusal:
    """Return the placement of the replicas and the learner processes that run on nodes.

    Args:
        nodes: Nodes of the cluster.
        model: The model that is served and trained.
        engine: The engine that generates.
        work: The work that is to run on nodes.
        wishes: The user's decisions. A placement follows all of them; if none can, the result is a refusal.
    """
    usable = [node for node in nodes if node.cpus >= 1 and not node.left]
    found = _solve(usable, model, engine, work, wishes)
    if isinstance(found, Placement):
        return found
    for changes in possible_changes(model, work, wishes):
        other, less, freed = change(changes, model, work, wishes)
        if isinstance(_solve(usable, other, engine, less, freed), Placement):
            return Refusal(reason=found.reason, changes=changes)
    return found


@dataclass
class _Room:
    """Free CPUs and GPUs of a node while replicas and learner processes (`ranks`) are assigned to it."""

    node: NodeFacts
    cpus: int
    gpus: int
    replicas: list[int]
    ranks: list[int]

    def take(self, gpus: int) -> None:
        self.cpus -= 1
        self.gpus -= gpus

    def fits(self, gpus: int) -> bool:
        return self.cpus >= 1 and self.gpus >= gpus


def _solve(
    nodes: Sequence[NodeFacts], model: Architecture, engine: EngineKind, work: Workload, wishes: Request
) -> Placement | Refusal:
    on_gpu = any(node.gpus >= 1 for node in nodes)
    engine_gpus = on_gpu and work.plays and engine.spread != "none"
    learner_gpus = on_gpu and work.trains and not work.learner_on_cpu
    if not nodes:
        return Refusal(reason="No node of the cluster has a CPU for an engine or a learner.")
    refused: Refusal | None = None
    no_room: Refusal | None = None
    for size in _sizes(nodes, model, engine, wishes) if engine_gpus else (0,):
        for replicas, processes in _counts(nodes, size, model, work, wishes, learner_gpus=learner_gpus):
            rooms = _assign(nodes, replicas, size, processes, int(learner_gpus))
            if rooms is None:
                no_room = no_room or Refusal(reason=_no_room(nodes, replicas, size, processes, int(learner_gpus)))
                continue
            found = _memory(rooms, model, engine, work, wishes, size=size, learner_gpus=learner_gpus)
            if isinstance(found, Placement):
                return found
            refused = refused or found
    return refused or no_room or Refusal(reason="No GPU of the cluster can hold a replica.")


def _sizes(nodes: Sequence[NodeFacts], model: Architecture, engine: EngineKind, wishes: Request) -> tuple[int, ...]:
    """Numbers of GPUs of a replica to try, the preferred one first. A replica is on one node."""
    if engine.spread == "one":
        return (1,)
    if wishes.tensor_parallel_size:
        return (wishes.tensor_parallel_size,)
    most = max(int(node.gpus) for node in nodes)
    total = min(_device_bytes(node) for node in nodes if node.gpus >= 1)
    fitting = [size for size in SIZES if size <= most and not model.heads % size]
    small = [size for size in fitting if weight_bytes(model) / size <= WEIGHTS_SHARE * total]
    return (*small, *(size for size in reversed(fitting) if size not in small))


def _counts(
    nodes: Sequence[NodeFacts], size: int, model: Architecture, work: Workload, wishes: Request, *, learner_gpus: bool
) -> Iterator[tuple[int, int]]:
    """Numbers of replicas and of learner processes to try, the preferred ones first: half of the GPUs for each."""
    total = sum(int(node.gpus) for node in nodes)
    few = weight_bytes(model) < TINY
    if not work.plays or not size:
        most = wishes.engine_replicas or 1
        choices: tuple[int, ...] = (most * work.plays,)
    elif wishes.engine_replicas:
        choices = (wishes.engine_replicas,)
    else:
        slots = sum(int(node.gpus) // size for node in nodes)
        half = 1 if few else slots if not learner_gpus else max(1, total // 2 // size)
        choices = tuple(dict.fromkeys((*range(min(half, slots), 0, -1), *range(half + 1, slots + 1)))) or (1,)
    for replicas in choices:
        left = total - replicas * size
        if not work.trains:
            yield replicas, 0
        elif wishes.learner_processes or few or not learner_gpus:
            yield replicas, wishes.learner_processes or 1
        else:
            yield replicas, max(left, 1)


def _assign(nodes: Sequence[NodeFacts], replicas: int, size: int, processes: int, gpus: int) -> list[_Room] | None:
    """Return the nodes with the replicas and processes of each; None if they do not fit.

    Args:
        nodes: Nodes of the cluster.
        replicas: Number of engine replicas.
        size: GPUs of a replica.
        processes: Number of learner processes.
        gpus: GPUs of a learner process, 0 or 1.
    """
    rooms = [_Room(node, int(node.cpus), int(node.gpus), [], []) for node in nodes]
    for number in range(replicas):
        free = [room for room in rooms if room.fits(size)]
        if not free:
            return None
        room = min(free, key=lambda room: (len(room.replicas), -room.gpus, -room.cpus))
        room.replicas.append(number)
        room.take(size)
    for number in range(processes):
        free = [room for room in rooms if room.fits(gpus)]
        if not free:
            return None
        begun = [room for room in free if room.ranks]
        room = begun[0] if begun else max(free, key=lambda room: room.gpus if gpus else room.cpus)
        room.ranks.append(number)
        room.take(gpus)
    return rooms


def _memory(
    rooms: Sequence[_Room],
    model: Architecture,
    engine: EngineKind,
    work: Workload,
    wishes: Request,
    *,
    size: int,
    learner_gpus: bool,
) -> Placement | Refusal:
    """Return the placement with the memory of each replica and process, or a refusal if a node has too little."""
    replicas, processes = (sum(len(getattr(room, name)) for room in rooms) for name in ("replicas", "ranks"))
    on_gpu = bool(size) * replicas, learner_gpus * processes
    found: Placement | None = None
    if any(on_gpu):
        used = [room for room in rooms if (size and room.replicas) or (learner_gpus and room.ranks)]
        total = min(_device_bytes(room.node) for room in used)
        devices = [Device(index=number, total=total) for number in range(on_gpu[0] * size + on_gpu[1])]
        named = replace(
            wishes,
            tensor_parallel_size=size or None,
            engine_replicas=on_gpu[0] or None,
            learner_processes=on_gpu[1] or None,
            engine_devices=None,
            learner_devices=None,
            sleep=False,
        )
        part = replace(work, plays=bool(on_gpu[0]), trains=bool(on_gpu[1]))
        planned = plan(devices, model, replace(engine, sleeps=False), part, named)
        if isinstance(planned, Refusal):
            return Refusal(reason=planned.reason)
        found = planned
    plain = model.parameters * CPU_BYTES / GIB
    engine_plan, learner_plan = _plans(found, work, wishes, replicas=replicas, processes=processes)
    of_engine = engine_plan.memory_gib if engine_plan and size else plain
    of_learner = learner_plan.memory_gib if learner_plan and learner_gpus else plain
    per_node = []
    for room in rooms:
        main = len(room.replicas) * (not size) * plain + len(room.ranks) * (not learner_gpus) * plain
        if room.node.memory and main > USABLE * room.node.memory / GIB:
            return Refusal(
                reason=f"Node {room.node.address} would hold {main:.1f} GiB in main memory ({len(room.replicas)} "
                f"engine replicas and {len(room.ranks)} learner processes), and has {room.node.memory / GIB:.1f}."
            )
        per_node.append(
            NodePlan(
                node=room.node.address,
                replicas=tuple(room.replicas),
                ranks=tuple(room.ranks),
                gpus=int(room.node.gpus),
                gpus_free=room.gpus,
                replica_gib=round(of_engine, 2) if room.replicas else 0.0,
                rank_gib=round(of_learner, 2) if room.ranks else 0.0,
                gib_total=round((_device_bytes(room.node) if room.node.gpus >= 1 else room.node.memory) / GIB, 2),
            )
        )
    return Placement(
        engine=engine_plan,
        learner=learner_plan,
        max_staleness=found.max_staleness if found else 1 if wishes.max_staleness is None else wishes.max_staleness,
        token_budget=found.token_budget if found else wishes.token_budget or TOKENS,
        per_node=tuple(per_node),
        notes=found.notes if found else (),
    )


def _plans(
    found: Placement | None, work: Workload, wishes: Request, *, replicas: int, processes: int
) -> tuple[EnginePlan | None, LearnerPlan | None]:
    """Return engine and learner plans without device numbers, because devices are chosen on the nodes."""
    engine = found.engine if found is not None else None
    learner = found.learner if found is not None else None
    if engine is None:
        engine = EnginePlan(max_model_len=wishes.max_model_len or 0)
    if learner is None:
        learner = LearnerPlan()
    return (
        replace(engine, replicas=replicas, devices=(), sleep=False) if work.plays else None,
        replace(learner, processes=processes, devices=()) if work.trains else None,
    )


def _device_bytes(node: NodeFacts) -> float:
    """Bytes of a node's smallest device; 0.0 if its driver did not answer, so that no device is known."""
    return min((device.total for device in node.devices), default=0.0)


def _no_room(nodes: Sequence[NodeFacts], replicas: int, size: int, processes: int, gpus: int) -> str:
    each = f" of {count_of(size, 'GPU')} each" if size else ""
    wanted = [f"{count_of(replicas, 'engine replica')}{each}"] * bool(replicas)
    ranks = f"{processes} learner process{'es' * (processes != 1)}" + (" with a GPU each" if gpus else "")
    wanted += [ranks] * bool(processes)
    there = [f"{node.address} {node.cpus:g} CPUs and {node.gpus:g} GPUs" for node in nodes]
    more = f" and {len(there) - LISTED} more nodes" if len(there) > LISTED else ""
    return (
        f"The cluster has no room for {' and '.join(wanted)}, each with a CPU and within one node: "
        f"it has {', '.join(there[:LISTED])}{more}."
    )
