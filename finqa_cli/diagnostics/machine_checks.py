"""Compares what this machine has with what a run needs: devices, memory, disk, processes.

Estimates are rough and marked as such.
"""

from __future__ import annotations

import math
import os
import re
import resource
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finqa_cli.documents import parse_json
from finqa_cli.errors import FinqaError
from finqa_cli.extend import registry
from finqa_cli.placement.placement_types import Device, Refusal, plan_document, plan_line, plan_text
from finqa_cli.processes import count_threads
from finqa_cli.settings import Settings, is_embedded
from finqa_cli.settings.backend_choice import cuda_visible
from finqa_cli.types import Check, CudaDevice, NodeFacts
from finqa_cli.wiring.gpu_support import torch_problem
from finqa_cli.wiring.placing import cuda_devices, find_plan, remedy_of, torch_cuda
from finqa_cli.wiring.policies import resolve

GB = 1e9

FREE_SHARE = 0.95
"""Share of a device's memory that must be free, because the plan assumes that all of it is."""

PROCESS_GB, TORCH_GB, SERVER_GB = 0.2, 0.8, 0.15
"""Resident memory in GB of the command itself, of PyTorch in it, and of one local environment server."""

SANDBOXES_PER_SERVER = 64
"""Largest number of sandboxes in one server process of the local provider."""

DISK_FAIL_GB, DISK_WARN_GB = 0.2, 2.0

SPARE_FILES = 256
"""Open files in addition to those of sessions and starts: libraries, data, logs, health checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The placement plan of `finqa train` as a check, as JSON values, and as a table of text."""

    check: Check
    document: Mapping[str, Any]
    text: str = ""


def gpu(settings: Settings) -> list[Check]:
    """Check that a CUDA device exists and that PyTorch can use it. The placement checks what fits on it."""
    cuda, built_for = cuda_visible(), torch_cuda()
    unneeded = modelless(settings) or is_embedded(settings.model.name)
    problem = torch_problem() if cuda and built_for and not unneeded else ""
    return [gpu_check(settings, cuda=cuda, devices=cuda_devices(), torch_cuda=built_for, problem=problem)]


def gpu_check(
    settings: Settings, *, cuda: bool, devices: Sequence[CudaDevice], torch_cuda: str | None, problem: str = ""
) -> Check:
    """Return the check of `gpu` for these facts.

    Args:
        settings: Settings with engine and model.
        cuda: There are CUDA devices.
        devices: The devices.
        torch_cuda: CUDA version of the installed torch; "": it was built without CUDA; None: unknown.
        problem: Why torch cannot use CUDA; empty if it can.
    """
    name = settings.model.name
    if modelless(settings) or is_embedded(name):
        found = _names(devices) if cuda else "none"
        user = f"engine {settings.engine.name}" if modelless(settings) else "the embedded policy"
        return Check(name="gpu", status="ok", detail=f"{found}; {user} needs none")
    if not cuda:
        detail = f"no CUDA device; {name} runs slowly on the CPU"
        return Check(name="gpu", status="warn", detail=detail, remedy="--model embedded")
    if torch_cuda == "":
        detail = f"{_names(devices)}, but the installed torch was built without CUDA"
        return Check(name="gpu", status="fail", detail=detail, remedy="pip install --force-reinstall torch")
    if problem:
        detail = f"{_names(devices)}, but the installed torch (CUDA {torch_cuda}) cannot use CUDA: {problem}"
        remedy = "export CUDA_VISIBLE_DEVICES= to compute on the CPU, or update NVIDIA's driver"
        return Check(name="gpu", status="fail", detail=detail, remedy=remedy)
    taken = [str(number) for number, device in enumerate(devices) if device.free < FREE_SHARE * device.total]
    if taken:
        detail = f"{_names(devices)}; other processes use memory on device {', '.join(taken)}"
        remedy = "nvidia-smi lists them; CUDA_VISIBLE_DEVICES excludes devices"
        return Check(name="gpu", status="warn", detail=detail, remedy=remedy)
    return Check(name="gpu", status="ok", detail=_names(devices))


def plan_report(
    settings: Settings, undecided: Collection[str], devices: Sequence[Device], nodes: Sequence[NodeFacts] = ()
) -> PlanReport:
    """Report whether and how training fits on these devices, and on the nodes of a cluster."""
    try:
        found = find_plan(settings, undecided, "train", devices, nodes)
    except FinqaError as error:
        check = Check(name="placement", status="fail", detail=error.message, remedy=error.remedy)
        return PlanReport(check=check, document={})
    if isinstance(found, Refusal):
        remedy = remedy_of(settings, undecided, "train", found)
        check = Check(name="placement", status="fail", detail=found.reason, remedy=remedy)
        return PlanReport(check=check, document=plan_document(found, remedy=check.remedy))
    engine = settings.engine.name
    detail = plan_line(found, engine) if devices or found.per_node else "no CUDA device: everything runs on the CPU"
    check = Check(name="placement", status="ok", detail=detail)
    return PlanReport(check=check, document=plan_document(found), text=plan_text(found, engine))


def cpu_bytes(settings: Settings) -> float:
    """Return the bytes per parameter that engine and learner need together in main memory, both in float32.

    Without an adapter the learner also needs memory for gradients and both averages of AdamW.
    """
    return 8 + (0 if settings.lora.rank else 12)


def model_size(settings: Settings) -> float | None:
    """Return the number of parameters of the policy; None if it is unknown, or if there is no such policy."""
    try:
        return parameters(resolve(settings.model.name).model)
    except FinqaError:
        return None


def parameters(model: str) -> float | None:
    """Return the number of parameters of a model, by the files of a folder or by `14B` in a hub id; None if unknown."""
    folder = Path(model)
    if folder.is_dir():
        try:
            config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
            stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        except (OSError, ValueError):
            return None
        return stored / (4 if "float32" in str(config.get("dtype", config.get("torch_dtype"))) else 2) or None
    found = re.search(r"(?:^|[-_])(\d+(?:\.\d+)?)([bm])(?=$|[-_])", model.rpartition("/")[2], re.IGNORECASE)
    return float(found[1]) * (1e9 if found[2] in "bB" else 1e6) if found else None


def count(number: float) -> str:
    """Return a number as text: `14.0 billion`, `0.9 million`."""
    return f"{number / 1e9:.1f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"


def modelless(settings: Settings) -> bool:
    """Return True if no model runs on this machine: the engine needs none, or sends requests to a server."""
    return any(
        part.modelless or part.remote for part in registry().components("engine") if part.name == settings.engine.name
    )


def _names(devices: Sequence[CudaDevice]) -> str:
    if not devices:
        return "a CUDA device"
    return devices[0].name if len(devices) == 1 else f"{len(devices)} devices, {devices[0].name}"


def disk(settings: Settings) -> list[Check]:
    """Check whether data and runs can be written, and how much space is free."""
    data = _disk("disk data", settings.data.home, "export FINQA_HOME=/a/folder/with/space")
    return [data, _disk("disk runs", settings.run.dir or Path("runs"), "--run-dir /a/folder/with/space/NAME")]


def memory(settings: Settings) -> list[Check]:
    """Check whether servers, engine and learner fit into main memory."""
    free = available_memory()
    if free is None:
        return []
    servers = SERVER_GB * _servers(settings)
    size = None if modelless(settings) else model_size(settings)
    if size is None and not modelless(settings):
        detail = f"{free / GB:.1f} GB free; the size of {settings.model.name} is not known"
        return [Check(name="memory", status="ok", detail=detail)]
    # with a GPU, main memory contains one copy of the weights while they are loaded
    width = 2.0 if cuda_visible() else cpu_bytes(settings)
    weights = size * width / GB if size else 0.0
    need = PROCESS_GB + servers + (TORCH_GB if size else 0.0) + weights
    detail = f"{free / GB:.1f} GB free, about {need:.1f} GB needed"
    if need <= free / GB:
        return [Check(name="memory", status="ok", detail=detail)]
    status: Literal["warn", "fail"] = "fail" if weights > free / GB else "warn"
    return [
        Check(
            name="memory",
            status=status,
            detail=detail,
            remedy="choose a smaller --model, or a machine with more memory",
        )
    ]


def open_files(settings: Settings) -> list[Check]:
    """Check that each session and each start may open a socket; a run raises the soft limit to the hard limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    pool = settings.pool
    need = pool.concurrency + pool.max_concurrent_create + SPARE_FILES
    use = f"{need} needed: a socket for each of {pool.concurrency} sessions, and for sandboxes that start"
    if hard == resource.RLIM_INFINITY or need <= hard:
        allowed = "no limit" if hard == resource.RLIM_INFINITY else f"{hard} allowed"
        return [Check(name="open files", status="ok", detail=f"{allowed}, {use}")]
    wanted = 2 ** max(math.ceil(math.log2(need)), 12)
    return [
        Check(
            name="open files",
            status="fail",
            detail=f"{hard} allowed, {use}",
            remedy=f"sudo prlimit --pid $$ --nofile={wanted}:{wanted}, or a smaller --max-concurrent-play",
        )
    ]


def processes(settings: Settings) -> list[Check]:
    """Check whether the servers of local sandboxes and the threads of the command may be started."""
    left = processes_left()
    need = 128 + 64 * _servers(settings)
    if left is None or left >= need:
        detail = f"no limit, about {need} needed" if left is None else f"{left} more allowed, about {need} needed"
        return [Check(name="processes", status="ok", detail=detail)]
    remedy = f"ulimit -u {4 * need}, or docker run --pids-limit {4 * need}"
    detail = f"{left} more processes and threads allowed, about {need} needed"
    return [Check(name="processes", status="warn", detail=detail, remedy=remedy)]


CHECKS: Mapping[str, Callable[[Settings], list[Check]]] = {
    "gpu": gpu,
    "memory": memory,
    "disk": disk,
    "open files": open_files,
    "processes": processes,
}
"""Name of a probe -> function that checks."""


def available_memory() -> float | None:
    """Return the bytes that are available without swapping, within the limit of the container; None if unknown."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    limits = [float(found[1]) * 1024] if found else []
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, used = _cgroup(limit), _cgroup(usage)
        if most is not None and used is not None:
            limits.append(max(most - used, 0.0))
    return min(limits, default=None)


def processes_left() -> int | None:
    """Return how many more processes and threads this user or container may start; None if no limit is known."""
    left: list[float] = []
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:  # root is exempt, see setrlimit(2)
        left.append(soft - count_threads(os.geteuid()))
    for folder in ("", "pids/"):
        most, used = _cgroup(f"{folder}pids.max"), _cgroup(f"{folder}pids.current")
        if most is not None and used is not None:
            left.append(most - used)
    return int(min(left)) if left else None


def _disk(name: str, path: Path, remedy: str) -> Check:
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    shown = str(path).replace(str(Path.home()), "~", 1)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Check(name=name, status="fail", detail=f"{shown} cannot be written", remedy=remedy)
    free = shutil.disk_usage(there).free / GB
    detail = f"{free:.1f} GB free in {shown}"
    if free >= DISK_WARN_GB:
        return Check(name=name, status="ok", detail=detail)
    return Check(name=name, status="fail" if free < DISK_FAIL_GB else "warn", detail=detail, remedy=remedy)


def _servers(settings: Settings) -> int:
    if settings.sandbox.name != "local":
        return 0
    return min(os.cpu_count() or 1, math.ceil(settings.pool.sandboxes / SANDBOXES_PER_SERVER))


def _cgroup(name: str) -> float | None:
    """Return a number from the cgroup of this container; None if it is `max` or does not exist."""
    try:
        text = (Path("/sys/fs/cgroup") / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return float(text) if text.isdigit() and float(text) < 2**60 else None
