"""Application of the placement plan to settings: finds devices and architecture, makes the plan, sets `auto` values.

Every command that runs an engine or a learner uses this module, and so does `finqa doctor`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from finqa_cli.errors import ConfigError, FinqaError, UsageError
from finqa_cli.extend import Component, registry
from finqa_cli.placement.cluster_plan import plan_on_nodes
from finqa_cli.placement.host_resources import SMALL_MODEL, free_cores
from finqa_cli.placement.known_models import known, read_architecture
from finqa_cli.placement.memory_formulas import GIB
from finqa_cli.placement.placement_plan import WISHES, plan
from finqa_cli.placement.placement_types import Device, EngineKind, Placement, Refusal, Request, Workload
from finqa_cli.processes import ask_program
from finqa_cli.settings import EMBEDDED, PLACED, Settings
from finqa_cli.settings.backend_choice import cuda_visible
from finqa_cli.settings.layers import assignment_text
from finqa_cli.types import Architecture, CudaDevice, NodeFacts
from finqa_cli.wiring.cluster_nodes import on_nodes, reached_nodes
from finqa_cli.wiring.gpu_support import check_devices
from finqa_cli.wiring.policies import resolve

Purpose = Literal["train", "sft", "dpo", "play"]
"""What a command runs: an engine and a learner (train, sft), a learner alone (dpo), or an engine alone (play)."""

_Part = Literal["engine", "learner"]

MOST_DEVICES = 64
"""Most devices that `--assume-gpus` accepts."""

MOST_THREADS = 64
"""Most threads of a component by default; matrix products of these sizes do not get faster with more."""

_TORCH = (
    "import torch; "
    "[print(torch.cuda.get_device_name(i), *torch.cuda.mem_get_info(i), sep=',') "
    "for i in range(torch.cuda.device_count())]"
)

_COMMANDS: Mapping[Purpose, Sequence[str]] = {
    "train": ("train", "--model"),
    "sft": ("sft", "DATA", "--model"),
    "dpo": ("dpo", "PAIRS", "--model"),
    "play": ("eval",),
}
"""Words of the command up to the model. Words in capitals are placeholders for arguments of the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Settings to which a plan was applied.

    Attributes:
        settings: The settings, with the plan's values for `undecided`.
        plan: The plan.
        undecided: The settings that the plan decided.
    """

    settings: Settings
    plan: Placement
    undecided: frozenset[str]


def place(settings: Settings, undecided: Collection[str], purpose: Purpose) -> Placed:
    """Decide the undecided settings, by the devices of this machine and of the cluster's nodes.

    Args:
        settings: Settings of the run.
        undecided: Settings of `PLACED` that the user left open.
        purpose: What the command runs.

    Raises:
        ConfigError: No placement fits; the remedy is a command that does.
        ConfigError, DataError: See `architecture`.
    """
    found = find_plan(settings, undecided, purpose, visible_devices(), reached_nodes(settings))
    if isinstance(found, Refusal):
        raise ConfigError(found.reason, remedy=remedy_of(settings, undecided, purpose, found))
    placed = share_cores(apply_plan(settings, undecided, found), purpose)
    return Placed(settings=placed, plan=found, undecided=frozenset(undecided))


def share_cores(settings: Settings, purpose: Purpose) -> Settings:
    """Return the settings with a number of threads for the engine and the learner that compute on the CPU.

    The number follows from the cores that are free now. An engine and a learner that work at the same time share them.
    A small model gets one thread: more gain little, and its results must not depend on the load. Values that are set
    stay, also those of a run that is resumed: another number of threads may change the last bits.
    """
    work = workload(settings, purpose)
    copies: dict[_Part, int] = {"engine": settings.generation.engine_replicas} if work.plays else {}
    copies |= {"learner": settings.train.learner_processes} if work.trains else {}
    names = {part: name for part in copies if (name := _threads_option(settings, part))}
    given = {part: getattr(settings, part).options.get(name) for part, name in names.items()}
    if all(value is not None for value in given.values()):
        return settings
    together = len(names) == 2 and not work.alternates and settings.train.max_staleness > 0
    cores = 1 if _is_small(settings) else min(free_cores(), _most_threads())
    changed: dict[str, Any] = {}
    for part, name in names.items():
        if given[part] is not None:
            continue
        others = [value for other, value in given.items() if other != part and isinstance(value, int)]
        mine = cores if not together else cores - others[0] if others else cores // 2
        options = {**getattr(settings, part).options, name: max(1, mine // copies[part])}
        changed[part] = getattr(settings, part).model_copy(update={"options": options})
    paths = {f"{part}.options.{names[part]}" for part in names if part in changed}
    run = settings.run.model_copy(update={"placed": tuple(sorted({*settings.run.placed, *paths}))})
    return settings.model_copy(update={**changed, "run": run})


def _threads_option(settings: Settings, part: _Part) -> str:
    """Return the option for the threads of a part that computes on the CPU of this machine, else an empty text."""
    component = _component(part, settings)
    if not component.threads or component.elsewhere or component.modelless:
        return ""
    on_gpu = bool(visible_devices()) and _devices_used(component, getattr(settings, part).options) != "none"
    return "" if on_gpu else component.threads


def _is_small(settings: Settings) -> bool:
    try:
        found = read_architecture(resolve(settings.model.name).model)
    except FinqaError:  # a policy that cannot be read is reported when it is loaded
        return False
    return found is not None and found.parameters < SMALL_MODEL


def _most_threads() -> int:
    """Return the threads that OMP_NUM_THREADS allows; its first number is that of the outermost level."""
    number = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(number) if number.isdecimal() and int(number) else MOST_THREADS


def place_again(settings: Settings, purpose: Purpose) -> Settings:
    """Return the settings of a recorded run with a plan for this machine. Settings that were planned are planned again.

    Raises:
        ConfigError, DataError: See `place`.
    """
    return place(settings, settings.run.placed, purpose).settings


def find_plan(
    settings: Settings,
    undecided: Collection[str],
    purpose: Purpose,
    devices: Sequence[Device],
    nodes: Sequence[NodeFacts] = (),
) -> Placement | Refusal:
    """Return the plan for these devices, and for the components on the nodes of a cluster, if the nodes are known.

    Raises:
        ConfigError, DataError: See `architecture`.
    """
    here = _find_plan_here(settings, undecided, purpose, devices)
    if isinstance(here, Refusal) or not nodes or any(node.gpus >= 1 and not node.devices for node in nodes):
        return here  # nothing runs on nodes, or the memory of their GPUs is not known
    kind, work = _engine_kind(settings, elsewhere=True), workload(settings, purpose, elsewhere=True)
    placed = {kind for kind, _ in on_nodes(settings)}
    work = replace(work, plays=work.plays and "engine" in placed, trains=work.trains and "learner" in placed)
    if not (work.plays or work.trains):
        return here
    model, wishes = _model_and_wishes(settings, undecided, purpose)
    there = plan_on_nodes(nodes, model, kind, work, wishes)
    if isinstance(there, Refusal):
        return there
    return replace(
        here,
        engine=there.engine if work.plays else here.engine,
        learner=there.learner if work.trains else here.learner,
        max_staleness=there.max_staleness if work.trains else here.max_staleness,
        token_budget=there.token_budget if work.trains else here.token_budget,
        per_node=there.per_node,
        notes=(*there.notes, *(here.notes if here.per_device else ())),
    )


def _find_plan_here(
    settings: Settings, undecided: Collection[str], purpose: Purpose, devices: Sequence[Device]
) -> Placement | Refusal:
    kind, work = _engine_kind(settings), workload(settings, purpose)
    wishes = _wishes(settings, undecided, purpose)
    uses_devices = (work.plays and kind.spread != "none") or (work.trains and not work.learner_on_cpu)
    if not devices or not uses_devices:
        return plan((), _NOTHING, kind, work, wishes)
    check_devices(devices, torch_cuda(), _bfloat16(settings, work))
    model, wishes = _model_and_wishes(settings, undecided, purpose)
    return plan(devices, model, kind, work, wishes)


def _model_and_wishes(settings: Settings, undecided: Collection[str], purpose: Purpose) -> tuple[Architecture, Request]:
    model, wishes = architecture(settings.model.name), _wishes(settings, undecided, purpose)
    if "model.max_model_len" not in undecided and not settings.model.max_model_len:  # the model's own limit
        wishes = replace(wishes, max_model_len=model.context or None)
    return model, wishes


def _bfloat16(settings: Settings, work: Workload) -> list[str]:
    """Return a setting for each component that would compute in bfloat16 on a GPU, with which it does not."""
    found: list[str] = []
    parts: dict[_Part, bool] = {"engine": work.plays, "learner": work.trains and not work.learner_on_cpu}
    for part in (part for part, used in parts.items() if used):
        component, options = _component(part, settings), getattr(settings, part).options
        if _devices_used(component, options) != "none" and component.config:
            try:
                other = getattr(registry().config(component, options), "instead_of_bfloat16", "")
            except FinqaError:  # wrong options are reported when the component is made
                continue
            found += [f"{part}.options.{other}"] if other else []
    return found


def visible_devices() -> tuple[Device, ...]:
    """The CUDA devices that are visible to this process and usable by its PyTorch."""
    if torch_cuda() == "":
        return ()
    return tuple(
        Device(
            index=number,
            name=device.name,
            total=device.total,
            driver=device.driver,
            capability=device.capability,
        )
        for number, device in enumerate(cuda_devices())
    )


def assumed_devices(text: str) -> tuple[Device, ...]:
    """Return hypothetical devices: `4x80` means four devices of 80 GiB.

    Raises:
        UsageError: The text does not have this form, or a number is out of range.
    """
    found = re.fullmatch(r"(\d{1,2})x(\d{1,4}(?:\.\d+)?)", text.strip().lower())
    if not found or not 1 <= int(found[1]) <= MOST_DEVICES or not 1 <= float(found[2]) <= 1024:
        raise UsageError(
            f"--assume-gpus must be NUMBERxGIB with up to {MOST_DEVICES} GPUs, not {text!r}.",
            remedy="finqa doctor --assume-gpus 4x80",
        )
    return tuple(
        Device(index=number, name=f"GPU of {found[2]} GiB", total=float(found[2]) * GIB)
        for number in range(int(found[1]))
    )


def architecture(model: str) -> Architecture:
    """Return the architecture of a policy's base model, without torch if possible.

    Raises:
        ConfigError: The architecture cannot be determined, or the policy does not exist.
        DataError: The policy is a run without a checkpoint, or a damaged checkpoint.
    """
    base = resolve(model).model
    found = read_architecture(base)
    if found is None:
        try:
            found = registry().first("inspect_model", Architecture, reference=base)
        except FinqaError:
            found = known(base, by_part=True)
            if found is None:
                raise
    if found is None:
        raise ConfigError(
            f"The size of {model!r} is not known, so it cannot be placed on GPUs.",
            remedy="give a model folder with a config.json, or a hub id that can be reached",
        )
    return found


def workload(settings: Settings, purpose: Purpose, *, elsewhere: bool = False) -> Workload:
    """Return the workload for a plan; with `elsewhere`, for the plan of the nodes of a cluster."""
    engine, learner = _component("engine", settings), _component("learner", settings)
    options = settings.optimizer.options
    kl = options.get("kl", "off")
    asks = {"sft": settings.sft.validation_samples, "dpo": options.get("validation_samples", 0)}
    return Workload(
        plays=asks.get(purpose) != 0,
        trains=purpose != "play" and not (engine.modelless and purpose != "dpo"),
        alternates=purpose in asks,
        lora_rank=settings.lora.rank,
        lora_targets=settings.lora.target_modules,
        checkpointing=settings.train.gradient_checkpointing is not False,
        reference=kl != "off" or purpose == "dpo",
        max_gen_tokens=settings.generation.max_gen_tokens,
        max_prompt_tokens=settings.data.max_prompt_tokens or 0,
        versions=settings.train.max_staleness + 1,
        learner_sleeps=learner.sleeps,
        learner_on_cpu=_devices_used(learner, settings.learner.options, elsewhere=elsewhere) == "none",
    )


def apply_plan(settings: Settings, undecided: Collection[str], found: Placement) -> Settings:
    """Return the settings with the plan's values for the undecided ones, which `run.placed` then lists."""
    engine, learner = found.engine, found.learner
    values: dict[str, Any] = {
        "train.max_staleness": found.max_staleness,
        "train.token_budget": found.token_budget,
    }
    if engine is not None:
        values |= {
            "model.tensor_parallel_size": engine.tensor_parallel_size,
            "model.gpu_memory_utilization": engine.gpu_memory_utilization,
            "model.max_model_len": engine.max_model_len,
            "model.sleep": engine.sleep,
            "model.engine_devices": engine.devices,
            "generation.engine_replicas": engine.replicas,
        }
    if learner is not None:
        values |= {"train.learner_processes": learner.processes, "model.learner_devices": learner.devices}
    sections: dict[str, dict[str, Any]] = {"run": {"placed": tuple(sorted(undecided))}}
    for path, value in values.items():
        if path in undecided:
            section, _, field = path.partition(".")
            sections.setdefault(section, {})[field] = value
    changed = {name: getattr(settings, name).model_copy(update=update) for name, update in sections.items()}
    return settings.model_copy(update=changed)


def remedy_of(settings: Settings, undecided: Collection[str], purpose: Purpose, refusal: Refusal) -> str:
    """Return a command that fits: with the changes of the refusal, and all other decisions of the user about placement.

    Without known changes it is the command with the embedded model.
    """
    changes = dict(refusal.changes)
    model = str(changes.pop("model.name", settings.model.name)) if changes else EMBEDDED
    words = ["finqa", *_COMMANDS[purpose], model]
    if not changes and model == EMBEDDED:
        return shlex.join(words)
    named = ["--set", f"engine.name={settings.engine.name}"] if purpose == "dpo" else ["--engine", settings.engine.name]
    words += named * workload(settings, purpose).plays
    rank = changes.pop("lora.rank", settings.lora.rank)
    words += ["--lora-rank", str(rank)] * (purpose != "play" and rank != type(settings.lora)().rank)
    for path in PLACED:
        if path not in undecided and path not in changes:
            section, _, field = path.partition(".")
            words += ["--set", f"{path}={assignment_text(path, getattr(getattr(settings, section), field))}"]
    return shlex.join(words)


def _wishes(settings: Settings, undecided: Collection[str], purpose: Purpose) -> Request:
    """Return the decisions of the user, of the learner's options and of torchrun."""
    decided: dict[str, Any] = {}
    for path, name in WISHES.items():
        section, _, field = path.partition(".")
        value = getattr(getattr(settings, section), field)
        if path not in undecided and value != ():
            decided[name] = value or None if name == "max_model_len" else value
    options = settings.learner.options
    if purpose != "play":
        if re.fullmatch(r"cuda:\d+", str(options.get("device", ""))):
            decided.setdefault("learner_devices", (int(str(options["device"])[5:]),))
        if _devices_used(_component("learner", settings), options) == "one":
            decided.setdefault("learner_processes", 1)
        if "LOCAL_WORLD_SIZE" in os.environ:
            decided.setdefault("learner_processes", int(os.environ["LOCAL_WORLD_SIZE"]))
    return Request(**decided)


def _engine_kind(settings: Settings, *, elsewhere: bool = False) -> EngineKind:
    component = _component("engine", settings)
    spread = _devices_used(component, settings.engine.options, elsewhere=elsewhere)
    return EngineKind(
        name=component.name,
        spread="none" if component.modelless or component.remote else spread,
        sleeps=component.sleeps,
        graphs=component.overhead_gib * GIB,
    )


def _devices_used(
    component: Component, options: Mapping[str, Any], *, elsewhere: bool = False
) -> Literal["none", "one", "several"]:
    """Return the devices that a component declares to use; the property `device_use` of its options has priority.

    A component that runs elsewhere uses no devices of this machine; with `elsewhere`, return its devices there.
    """
    if component.elsewhere and not elsewhere:
        return "none"
    try:
        config = registry().config(component, options) if component.config else None
    except FinqaError:  # wrong options are reported when the component is made
        config = None
    used: Literal["none", "one", "several"] = getattr(config, "device_use", component.devices)
    return used


def _component(kind: _Part, settings: Settings) -> Component:
    return registry().find(kind, getattr(settings, kind).name)


@cache
def cuda_devices() -> tuple[CudaDevice, ...]:
    """The devices that CUDA_VISIBLE_DEVICES allows, in its order; empty if they cannot be found.

    They are found by nvidia-smi, else by PyTorch in a separate process. The result is cached, because the memory that a
    run itself uses must not change its plan.
    """
    if not cuda_visible():
        return ()
    return _by_driver() or _by_torch()


def torch_cuda() -> str | None:
    """The CUDA version for which the installed PyTorch is built; empty for a CPU build; None if it is not known.

    It is read from a file of the package, because importing torch would take longer than everything else here.
    """
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return None
    try:
        text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r"^cuda\b[^=]*= *(?:'([^']*)'|\"([^\"]*)\"|None)", text, re.MULTILINE)
    return (version[1] or version[2] or "") if version else None


def _by_driver() -> tuple[CudaDevice, ...]:
    devices: dict[str, CudaDevice] = {}
    try:
        for line in _ask_driver("uuid", "name", "memory.free", "memory.total"):
            uuid, _, rest = line.partition(",")
            name, free, total = rest.rsplit(",", 2)
            size = CudaDevice(name=name.strip(), free=float(free) * 2**20, total=float(total) * 2**20)
            devices[uuid.strip()] = size
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):  # old drivers do not know compute_cap
        for line in _ask_driver("uuid", "driver_version", "compute_cap"):
            uuid, driver, capability = (part.strip() for part in line.split(","))
            devices[uuid] = replace(devices[uuid], driver=driver, capability=float(capability))
    # The driver numbers devices by bus, CUDA by speed unless this is set: the plan is about the driver's numbers.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    listed = list(devices.values())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(listed)
    chosen: list[CudaDevice] = []
    for part in (part.strip() for part in visible.split(",")):
        if part.isdigit() and int(part) < len(listed):
            chosen.append(listed[int(part)])
        elif matching := [device for uuid, device in devices.items() if part and uuid.startswith(part)]:
            chosen.append(matching[0])
        else:
            break  # like CUDA: devices after an invalid entry are not visible
    return tuple(chosen)


def _ask_driver(*facts: str) -> list[str]:
    query = ["nvidia-smi", f"--query-gpu={','.join(facts)}", "--format=csv,noheader,nounits"]
    return [line for line in ask_program(query, timeout_s=5).stdout.splitlines() if line.strip()]


def _by_torch() -> tuple[CudaDevice, ...]:
    try:
        text = ask_program([sys.executable, "-c", _TORCH], timeout_s=60).stdout
        rows = [line.rsplit(",", 2) for line in text.splitlines()]
        return tuple(CudaDevice(name=name, free=float(free), total=float(total)) for name, free, total in rows)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


_NOTHING = Architecture(
    family="",
    class_name="",
    dtype="",
    layers=0,
    hidden=0,
    heads=0,
    key_value_heads=0,
    head_dim=0,
    vocabulary=0,
    context=0,
    tied=True,
    parameters=0,
    kv_values_per_token=0,
    linear=(),
    lora_targets=(),
)
"""Architecture for plans without devices, which do not depend on the model."""
