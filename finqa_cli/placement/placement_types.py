"""The input and the result of a placement plan, and its forms as a document and as text.

Memory is in bytes unless a name ends in `gib`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Spread = Literal["none", "one", "several"]
"""CUDA devices of one engine replica: none (it runs elsewhere), exactly one, or any number (tensor parallelism)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A CUDA device.

    Attributes:
        index: Its number in this process.
        total: Its memory in bytes.
        name: Its name according to the driver.
        driver: As `CudaDevice.driver`.
        capability: As `CudaDevice.capability`.
    """

    index: int
    total: float
    name: str = "GPU"
    driver: str = ""
    capability: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """Properties of an engine that the plan depends on.

    Attributes:
        name: Its name for `--engine`.
        spread: Devices that a replica may have.
        sleeps: It can free its devices during updates.
        replicates: Several replicas can share the requests.
        graphs: Bytes that compiled graphs and workspaces take on each device, besides what the model needs.
    """

    name: str
    spread: Spread
    sleeps: bool = False
    replicates: bool = True
    graphs: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work that is to run.

    Attributes:
        plays: An engine generates.
        trains: A learner updates weights.
        alternates: Engine and learner are never active together, at any staleness (supervised fine-tuning).
        lora_rank: Rank of the adapter; 0 trains all weights.
        lora_targets: Layers with an adapter.
        checkpointing: The learner recomputes activations.
        reference: If all weights are trained, the learner keeps a frozen copy of the model as reference.
        max_gen_tokens: Longest completion in tokens.
        max_prompt_tokens: Longest prompt in tokens; 0 where it is not limited.
        versions: Policy versions that the engine serves at once.
        learner_on_cpu: The settings put the learner on the CPU.
        learner_sleeps: In one process, the learner's frozen weights leave the device in the turns of the engine.
    """

    plays: bool
    trains: bool
    alternates: bool = False
    lora_rank: int = 16
    lora_targets: tuple[str, ...] = ()
    checkpointing: bool = True
    reference: bool = False
    max_gen_tokens: int = 512
    max_prompt_tokens: int = 0
    versions: int = 2
    learner_on_cpu: bool = False
    learner_sleeps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The user's decisions; the plan decides fields that are None. Fields have the names of settings."""

    tensor_parallel_size: int | None = None
    engine_replicas: int | None = None
    gpu_memory_utilization: float | None = None
    sleep: bool | None = None
    token_budget: int | None = None
    max_model_len: int | None = None
    learner_processes: int | None = None
    max_staleness: int | None = None
    engine_devices: tuple[int, ...] | None = None
    learner_devices: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """Plan of the engine replicas.

    Attributes:
        replicas: Number of replicas.
        tensor_parallel_size: Devices of each replica.
        devices: Devices of all replicas, those of the first replica first; empty on the CPU.
        gpu_memory_utilization: Share of each device that the engine may use.
        memory_gib: The same share in GiB, of the smallest of its devices.
        sleep: The engine frees its devices during updates.
        max_model_len: Longest prompt plus completion in tokens; 0: the model's own limit.
        kv_tokens: Tokens whose keys and values fit on one replica; 0: not known.
    """

    replicas: int = 1
    tensor_parallel_size: int = 1
    devices: tuple[int, ...] = ()
    gpu_memory_utilization: float = 0.85
    memory_gib: float = 0.0
    sleep: bool = False
    max_model_len: int = 0
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerPlan:
    """Plan of the learner processes.

    Attributes:
        processes: Number of processes that train together.
        devices: One device for each process, in their order; empty on the CPU.
        memory_gib: Predicted peak on each device in GiB.
    """

    processes: int = 1
    devices: tuple[int, ...] = ()
    memory_gib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """The prediction for one device.

    Attributes:
        device: Number of the device.
        gib_total: Its memory.
        gib_planned: The sum of `items`. If engine and learner take turns, that of the larger turn.
        items: GiB of each part, such as `engine kv_cache` and `learner weights`.
    """

    device: int
    gib_total: float
    gib_planned: float
    items: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """The prediction for one node of a cluster.

    Attributes:
        node: Its address.
        replicas: Numbers of the engine replicas on it.
        ranks: Numbers of the learner processes on it.
        gpus: Number of its GPUs.
        gpus_free: Number of its GPUs that are not used.
        replica_gib: GiB of a replica on each of its GPUs, or in main memory without GPUs; 0.0 without replicas.
        rank_gib: GiB of a learner process on its GPU, or in main memory without GPUs; 0.0 without processes.
        gib_total: Memory of its smallest GPU, or its main memory without GPUs.
    """

    node: str
    replicas: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    gpus: int = 0
    gpus_free: int = 0
    replica_gib: float = 0.0
    rank_gib: float = 0.0
    gib_total: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The placement of engine and learner.

    Attributes:
        engine: Plan of the engine; None if nothing is generated.
        learner: Plan of the learner; None if nothing is trained.
        max_staleness: Iterations that rollouts may run ahead.
        token_budget: Tokens of a micro-batch.
        per_device: One entry for each CUDA device of the machine.
        shared: Engine and learner take turns on the same devices.
        notes: Sentences about what is unusual, such as devices that are not used.
        per_node: One entry for each node of the cluster; empty if nothing runs on nodes.
    """

    engine: EnginePlan | None
    learner: LearnerPlan | None
    max_staleness: int
    token_budget: int
    per_device: tuple[DevicePlan, ...] = ()
    shared: bool = False
    notes: tuple[str, ...] = ()
    per_node: tuple[NodePlan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """No placement fits.

    Attributes:
        reason: What does not fit, with GiB if it is memory.
        changes: Changed settings with which a plan fits: setting -> value, None for `auto`. Empty if none are known.
    """

    reason: str
    changes: Mapping[str, str | int | float | None] = field(default_factory=dict)


def plan_document(found: Placement | Refusal, *, remedy: str = "") -> dict[str, Any]:
    """The JSON form: `engine`, `learner`, `max_staleness`, `token_budget`, `per_device`, `shared`, `notes`, `refused`.

    Args:
        found: The plan.
        remedy: For a refusal: the command with which a plan fits.
    """
    if isinstance(found, Refusal):
        return {
            "engine": None,
            "learner": None,
            "max_staleness": None,
            "token_budget": None,
            "per_device": [],
            "shared": False,
            "notes": [],
            "refused": {"reason": found.reason, "remedy": remedy, "changes": dict(found.changes)},
        }
    engine, learner = found.engine, found.learner
    return {
        "engine": engine
        and {
            "replicas": engine.replicas,
            "tensor_parallel_size": engine.tensor_parallel_size,
            "devices": list(engine.devices),
            "memory_gib": engine.memory_gib,
            "gpu_memory_utilization": engine.gpu_memory_utilization,
            "sleep": engine.sleep,
            "max_model_len": engine.max_model_len,
            "kv_tokens": engine.kv_tokens,
        },
        "learner": learner
        and {"processes": learner.processes, "devices": list(learner.devices), "memory_gib": learner.memory_gib},
        "max_staleness": found.max_staleness,
        "token_budget": found.token_budget,
        "per_device": [
            {
                "device": device.device,
                "gib_total": device.gib_total,
                "gib_planned": device.gib_planned,
                "items": dict(device.items),
            }
            for device in found.per_device
        ],
        "shared": found.shared,
        **({"per_node": [asdict(node) for node in found.per_node]} if found.per_node else {}),
        "notes": list(found.notes),
        "refused": None,
    }


def plan_line(found: Placement, engine: str) -> str:
    """One line with the devices of engine and learner.

    Args:
        found: The plan.
        engine: Name of the engine.
    """
    parts = []
    if found.engine is not None and found.engine.devices:
        where = _numbers(found.engine.devices)
        size = found.engine.tensor_parallel_size
        spread = f" with {size} devices each" if size > 1 else ""
        parts.append(f"{engine} on {where} ({count_of(found.engine.replicas, 'replica')}{spread})")
    if found.learner is not None and found.learner.devices:
        turns = ", in turn" if found.shared else ""
        processes = f"{found.learner.processes} process" + ("es" if found.learner.processes > 1 else "")
        parts.append(f"learner on {_numbers(found.learner.devices)} ({processes}{turns})")
    if found.per_node:
        parts.append(_on_nodes(found))
    if found.learner is not None:
        parts += [f"token budget {found.token_budget:,}", f"staleness {found.max_staleness}"]
    if found.engine is not None and found.engine.max_model_len:
        parts.append(f"context {found.engine.max_model_len:,}")
    return ", ".join(parts)


def plan_text(found: Placement, engine: str) -> str:
    """The line, a row for each device with its largest parts, and the notes."""
    rows = [*map(_row, found.per_device), *map(_node_row, found.per_node)]
    notes = [f"note: {note}" for note in found.notes]
    return "\n".join([f"placement: {plan_line(found, engine) or 'no CUDA device is used'}", *rows, *notes])


def _row(device: DevicePlan) -> str:
    items = sorted(device.items.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {size:.1f}" for name, size in items if size >= 0.1) or "not used"
    return f"  device {device.device}: {device.gib_planned:.1f} of {device.gib_total:.0f} GiB: {parts}"


def _on_nodes(found: Placement) -> str:
    """`4 replicas with 2 GPUs each on 2 nodes, 4 learner processes on 1 node`."""
    parts = []
    if replicas := sum(len(node.replicas) for node in found.per_node):
        nodes = sum(bool(node.replicas) for node in found.per_node)
        size = found.engine.tensor_parallel_size if found.engine else 1
        spread = f" with {size} GPUs each" if size > 1 else ""
        parts.append(f"{count_of(replicas, 'replica')}{spread} on {count_of(nodes, 'node')}")
    if ranks := sum(len(node.ranks) for node in found.per_node):
        nodes = sum(bool(node.ranks) for node in found.per_node)
        parts.append(f"{ranks} learner process{'es' * (ranks != 1)} on {count_of(nodes, 'node')}")
    return ", ".join(parts)


def _node_row(node: NodePlan) -> str:
    total = f"of {node.gib_total:.0f} GiB" + (" on each GPU" if node.gpus else "")
    parts = []
    if node.replicas:
        parts.append(f"replica {','.join(map(str, node.replicas))} ({node.replica_gib:.2f} {total})")
    if node.ranks:
        parts.append(f"learner process {','.join(map(str, node.ranks))} ({node.rank_gib:.2f} {total})")
    free = f"; {count_of(node.gpus_free, 'GPU')} of {node.gpus} not used" if node.gpus_free else ""
    return f"  node {node.node}: {', '.join(parts) or 'not used'}{free}"


def _numbers(devices: tuple[int, ...]) -> str:
    label = "device" if len(devices) == 1 else "devices"
    return f"{label} {','.join(map(str, devices))}"


def count_of(number: int, noun: str) -> str:
    """`1 device`, `2 devices`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
