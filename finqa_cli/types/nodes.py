"""What the nodes of a cluster are and run, as a probe on each of them found it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from finqa_cli.types.checks import Check


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDevice:
    """A CUDA device that a process sees; memory in bytes."""

    name: str
    free: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node, or the controller's process beside them. What is not known has its default.

    Attributes:
        address: Its address in the cluster; of several nodes with one address the port is added.
        controller: It is the process that asks, to which the others are compared.
        left: Why the node is no part of the cluster any more; empty while it is.
        problem: Why the probe on it gave no answer; empty when it did.
        machine: What distinguishes its machine from others: the boot id of the kernel and the network namespace.
        finqa: Version of finqa; empty where it cannot be imported.
        code: Digest of finqa's source files.
        ray: Version of Ray.
        python: Version of Python, such as `3.11.7`.
        model: File of the model -> its digest, as the node finds them; empty where it finds none.
        offline: It may not fetch a model from the hub.
        cpus: CPUs that the cluster uses of it; without any it runs no engine and no learner.
        gpus: GPUs that the cluster uses of it.
        devices: CUDA devices that its driver reports.
        memory: Main memory in bytes.
        shared_memory: Size of /dev/shm in bytes; None where there is none.
        open_files: Hard limit of open files of a process; None: unlimited.
        disk: The temporary folder, where versions and states are written.
        disk_free: Free bytes there; None where it cannot be written.
        unreachable: Address of another node -> why a port that it listens on cannot be reached.
        clock_s: Its clock minus the controller's in seconds, with half of the round trip taken out.
        clock_error_s: Largest error of that.
        token: The cluster's calls carry a token (`RAY_AUTH_MODE=token`).
        lacks: What keeps chosen components from running there.
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
    offline: bool = False
    cpus: float = 0.0
    gpus: float = 0.0
    devices: tuple[CudaDevice, ...] = ()
    memory: float = 0.0
    shared_memory: float | None = None
    open_files: int | None = None
    disk: str = ""
    disk_free: float | None = None
    unreachable: Mapping[str, str] = field(default_factory=dict)
    clock_s: float = 0.0
    clock_error_s: float = 0.0
    token: bool = False
    lacks: tuple[Check, ...] = ()
