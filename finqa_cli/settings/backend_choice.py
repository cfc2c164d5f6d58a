"""Choice of model, engine and sandbox provider where they are `auto`, from what this machine has."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.settings.schema import AUTO, EMBEDDED, is_embedded
from finqa_cli.venvs import find_venv

GPU_MODEL = "Qwen/Qwen3-14B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts that the choice depends on.

    Attributes:
        modelless: Names of the engines that use no model.
        policy: Name of the small policy of the environment.
        cuda: A CUDA device is visible to this process.
        vllm: The vllm component is registered, and set up or installed beside finqa.
        daytona: The daytona provider is registered.
        daytona_key: DAYTONA_API_KEY is set.
    """

    modelless: Collection[str] = ()
    policy: str = EMBEDDED
    cuda: bool = False
    vllm: bool = False
    daytona: bool = False
    daytona_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The backends to use.

    Attributes:
        model: Name of the model.
        engine: Name of the engine.
        sandbox: Name of the sandbox provider.
        reasons: `model`, `engine` or `sandbox` -> phrase about the choice, for those that were `auto`.
    """

    model: str
    engine: str
    sandbox: str
    reasons: Mapping[str, str]

    def line(self, *, sandboxless: bool = False, new_model: bool = False) -> str:
        """Return one line with what was chosen and why; empty when nothing was chosen.

        Args:
            sandboxless: The environment needs no sandbox, so the choice of the provider is not reported.
            new_model: The command creates a new model, so the choice of the model is not reported.
        """
        unused = {*(["sandbox"] if sandboxless else []), *(["model"] if new_model else [])}
        shown = [reason for kind, reason in self.reasons.items() if kind not in unused]
        return "chosen: " + ", ".join(shown) if shown else ""


def choose(facts: Facts, *, model: str = AUTO, engine: str = AUTO, sandbox: str = AUTO) -> Choices:
    """Choose every name that is `auto`; other names are kept. Pure."""
    reasons: dict[str, str] = {}
    if model == AUTO:
        model = GPU_MODEL if facts.cuda else facts.policy
        if engine not in facts.modelless:
            reasons["model"] = f"model {model} ({'CUDA device found' if facts.cuda else 'no CUDA device'})"
    if engine == AUTO:
        engine = "vllm" if facts.cuda and facts.vllm and not is_embedded(model) else "transformers"
        reasons["engine"] = f"engine {engine} ({_engine_reason(facts, model)})"
    if sandbox == AUTO:
        sandbox = "daytona" if facts.daytona_key and facts.daytona else "local"
        reasons["sandbox"] = f"sandbox {sandbox} ({_sandbox_reason(facts)})"
    return Choices(model=model, engine=engine, sandbox=sandbox, reasons=reasons)


def facts(
    registered: Collection[tuple[str, str]],
    modelless: Collection[str] = (),
    *,
    policy: str = EMBEDDED,
    home: Path | None = None,
) -> Facts:
    """Collect the facts of this machine without importing heavy packages.

    Args:
        registered: (kind, name) of every registered component.
        modelless: Names of the engines that use no model.
        policy: Name of the small policy of the environment.
        home: FINQA_HOME, where `finqa setup` creates virtual environments; None: only packages in finqa's own
            environment count.
    """
    return Facts(
        modelless=modelless,
        policy=policy,
        cuda=cuda_visible(),
        vllm=("engine", "vllm") in registered and _has_vllm(home),
        daytona=("sandbox", "daytona") in registered,
        daytona_key=bool(os.environ.get("DAYTONA_API_KEY")),
    )


def _has_vllm(home: Path | None) -> bool:
    set_up = home is not None and find_venv(home, "vllm") is not None
    return set_up or importlib.util.find_spec("vllm") is not None


def cuda_visible(devices: Path = Path("/dev")) -> bool:
    """Return True when the NVIDIA driver offers a device and CUDA_VISIBLE_DEVICES does not hide it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return False
    return any(device.name[6:].isdigit() for device in devices.glob("nvidia*")) or (devices / "dxg").exists()


def _engine_reason(facts: Facts, model: str) -> str:
    if is_embedded(model):
        return "it serves the embedded model"
    if not facts.cuda:
        return "no CUDA device"
    return "vllm is installed" if facts.vllm else "vllm is not set up: finqa setup vllm"


def _sandbox_reason(facts: Facts) -> str:
    if not facts.daytona_key:
        return "no DAYTONA_API_KEY"
    return "DAYTONA_API_KEY is set" if facts.daytona else "no daytona provider is registered"
