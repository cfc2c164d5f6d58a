"""The policy against the devices of this machine: its size, what it needs, and whether a GPU can hold it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import FinqaError
from finqa_cli.extend import registry
from finqa_cli.placement import Device, Refusal, plan_document, plan_line, plan_text
from finqa_cli.settings import Settings, is_embedded
from finqa_cli.settings.backend_choice import cuda_visible
from finqa_cli.types import Check
from finqa_cli.wiring.placing import CudaDevice, cuda_devices, find_plan, remedy_of, torch_cuda
from finqa_cli.wiring.policies import resolve

GB = 1e9

FREE_SHARE = 0.95
"""Of a device's memory that must be free: the plan counts on all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The placement plan of `finqa train` as a finding, as a document, and as a table for a person."""

    check: Check
    document: Mapping[str, Any]
    text: str = ""


def gpu(settings: Settings) -> list[Check]:
    """Whether the run finds a CUDA device and a PyTorch that can use it; what fits on it is the placement's check."""
    return [gpu_check(settings, cuda=cuda_visible(), devices=cuda_devices(), torch_cuda=torch_cuda())]


def gpu_check(settings: Settings, *, cuda: bool, devices: Sequence[CudaDevice], torch_cuda: str | None) -> Check:
    """The judgement of `gpu` on these facts."""
    name = settings.model.name
    if modelless(settings) or is_embedded(name):
        found = _names(devices) if cuda else "none"
        user = f"engine {settings.engine.name}" if modelless(settings) else "the embedded policy"
        return Check(name="gpu", status="ok", detail=f"{found}; {user} needs none")
    if not cuda:
        detail = f"no CUDA device; {name} runs slowly on the CPU"
        return Check(name="gpu", status="warn", detail=detail, remedy="finqa train --model embedded")
    if torch_cuda == "":
        detail = f"{_names(devices)}, but the installed torch is built without CUDA"
        return Check(name="gpu", status="fail", detail=detail, remedy="pip install --force-reinstall torch")
    taken = [str(number) for number, device in enumerate(devices) if device.free < FREE_SHARE * device.total]
    if taken:
        detail = f"{_names(devices)}; other processes use memory of device {', '.join(taken)}"
        remedy = "nvidia-smi shows them; CUDA_VISIBLE_DEVICES leaves devices out"
        return Check(name="gpu", status="warn", detail=detail, remedy=remedy)
    return Check(name="gpu", status="ok", detail=_names(devices))


def plan_report(settings: Settings, undecided: Collection[str], devices: Sequence[Device]) -> PlanReport:
    """Whether and how training fits on these devices."""
    try:
        found = find_plan(settings, undecided, "train", devices)
    except FinqaError as error:
        check = Check(name="placement", status="fail", detail=error.message, remedy=error.remedy)
        return PlanReport(check=check, document={})
    if isinstance(found, Refusal):
        remedy = remedy_of(settings, undecided, "train", found)
        check = Check(name="placement", status="fail", detail=found.reason, remedy=remedy)
        return PlanReport(check=check, document=plan_document(found, remedy=remedy))
    engine = settings.engine.name
    detail = plan_line(found, engine) if devices else "no CUDA device: everything runs on the CPU"
    check = Check(name="placement", status="ok", detail=detail)
    return PlanReport(check=check, document=plan_document(found), text=plan_text(found, engine))


def cpu_bytes(settings: Settings) -> float:
    """Bytes per parameter that engine and learner hold together in main memory, both in float32.

    Without an adapter the learner has gradients and both averages of AdamW as well.
    """
    return 8 + (0 if settings.lora.rank else 16)


def model_size(settings: Settings) -> float | None:
    """Parameters of the policy; None when nothing tells, or when there is no such policy."""
    try:
        return parameters(resolve(settings.model.name).model)
    except FinqaError:
        return None


def parameters(model: str) -> float | None:
    """How many a model has, by the files of a folder or by the `14B` in a hub id; None when neither tells."""
    folder = Path(model)
    if folder.is_dir():
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        except (OSError, ValueError):
            return None
        return stored / (4 if "float32" in str(config.get("dtype", config.get("torch_dtype"))) else 2) or None
    found = re.search(r"(?:^|[-_])(\d+(?:\.\d+)?)([bm])(?=$|[-_])", model.rpartition("/")[2], re.IGNORECASE)
    return float(found[1]) * (1e9 if found[2] in "bB" else 1e6) if found else None


def count(number: float) -> str:
    """`14.0 billion`, `0.9 million`."""
    return f"{number / 1e9:.1f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"


def modelless(settings: Settings) -> bool:
    """True when no model runs on this machine: the engine answers from a mind of its own, or asks a server."""
    return any(
        part.modelless or part.remote for part in registry().components("engine") if part.name == settings.engine.name
    )


def _names(devices: Sequence[CudaDevice]) -> str:
    if not devices:
        return "a CUDA device"
    return devices[0].name if len(devices) == 1 else f"{len(devices)} devices, {devices[0].name}"
