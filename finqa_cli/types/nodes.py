"""Hardware and software of the nodes of a cluster, as a probe on each node found it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from finqa_cli.types.checks import Check


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDevice:
    """A CUDA device that is visible to a process.

    Attributes:
        name: Its name.
        free: Free memory in bytes.
        total: All memory in bytes.
        driver: Version of its driver, such as `580.65.06`; empty: unknown.
        capability: Compute capability, such as 8.0; None: unknown.
    """

    name: str
    free: float
    total: float
    driver: str = ""
    capability: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node, or the controller's process. A fact that is not known has its default.

    Attributes:
        address: Its address in the cluster; if several nodes have the same address, the port is added.
        controller: It is the controller's process, with which the nodes are compared.
        left: Why the node is not part of the cluster any more; empty while it is.
        problem: Why the probe on the node failed; empty if it succeeded.
        machine: Identity of its machine: the boot id of the kernel and the network namespace.
        finqa: Version of finqa; empty if it cannot be imported.
        code: Digest of finqa's source files.
        ray: Version of Ray.
        python: Version of Python, such as `3.11.7`.
        model: File of the model -> its digest, as found on the node; empty if there is none.
        cpus: CPUs that the cluster may use on it; with 0 it runs no engine and no learner.
        gpus: GPUs that the cluster may use on it.
        devices: CUDA devices that its driver reports.
        memory: Main memory in bytes.
        shared_memory: Size of /dev/shm in bytes; None if there is none.
        open_files: Hard limit of open files of a process; None: unlimited.
        disk: The temporary folder, where versions and states are written.
        disk_free: Free bytes in that folder; None if it is not writable.
        apart: Why a learner process there does not join those of the other nodes; empty if it does, or was not tried.
        unreachable: Address of another node -> why a port on which it listens cannot be reached from this node.
        clock_s: Its clock minus the controller's clock in seconds, corrected by half of the round trip.
        clock_error_s: Largest error of `clock_s` in seconds.
        token: The cluster's calls carry a token (`RAY_AUTH_MODE=token`).
        lacks: What prevents chosen components from running on the node.
    """

    address: str
    controller: bool = False
    left: str = ""
    problem: str = ""
    machine: str = ""
    finqa: str = ""
    code: str = ""
    ray: str = ""
    python: str = ""
    model: Mapping[str, str] = field(default_factory=dict)
    cpus: float = 0.0
    gpus: float = 0.0
    devices: tuple[CudaDevice, ...] = ()
    memory: float = 0.0
    shared_memory: float | None = None
    open_files: int | None = None
    disk: str = ""
    disk_free: float | None = None
    apart: str = ""
    unreachable: Mapping[str, str] = field(default_factory=dict)
    clock_s: float = 0.0
    clock_error_s: float = 0.0
    token: bool = False
    lacks: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNeeds:
    """What a run needs on the nodes.

    Attributes:
        address: Address of the cluster, HOST:PORT, as far as it is known.
        model: Folder or hub id of the base model; empty if the run needs none.
        folder: The model is a folder.
        ships: The model is part of finqa, so it needs neither a copy nor a GPU.
    """

    address: str = "HOST:PORT"
    model: str = ""
    folder: bool = False
    ships: bool = False
