"""Choice of model, engine and sandbox provider where they are `auto`, from what this machine has."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.errors import ConfigError
from finqa_cli.extend import Component, Machine, Registry
from finqa_cli.extend.plugin_calls import describe
from finqa_cli.settings.schema import AUTO, is_embedded

GPU_MODEL = "Qwen/Qwen3-14B"


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


def choose(
    components: Registry, home: Path, *, model: str, engine: str, sandbox: str, policy: str, assumed: bool = False
) -> Choices:
    """Choose every name that is `auto`, by what this machine has; other names are kept.

    Args:
        components: The registry; each component that may be chosen declares its `rank` and when it `suits`.
        home: FINQA_HOME.
        model: Name of the model.
        engine: Name of the engine.
        sandbox: Name of the sandbox provider.
        policy: Small policy of the environment, the model without a GPU.
        assumed: Choose as on a machine with CUDA devices and all that `finqa setup` installs.
    """
    cuda = assumed or cuda_visible()
    reasons: dict[str, str] = {}
    if model == AUTO:
        model = GPU_MODEL if cuda else policy
        if not any(each.name == engine and each.modelless for each in components.components("engine")):
            reasons["model"] = f"model {model} ({'CUDA device found' if cuda else 'no CUDA device'})"
    machine = Machine(embedded=is_embedded(model), cuda=cuda, home=home, assumed=assumed)
    names = {"engine": engine, "sandbox": sandbox}
    for kind in [kind for kind, name in names.items() if name == AUTO]:
        names[kind], reason = _best(components.components(kind), machine)
        reasons[kind] = f"{kind} {names[kind]} ({reason})"
    return Choices(model=model, reasons=reasons, **names)


def _best(components: Sequence[Component], machine: Machine) -> tuple[str, str]:
    """Return the name of the highest component that suits a machine, and why it, or why not the one above it."""
    refusal = ""
    for component in sorted(components, key=lambda each: -each.rank):
        if not component.rank:
            break
        try:
            suits, reason = component.suits(machine) if component.suits is not None else (True, "the only one")
        except Exception as error:  # a plugin of another author may raise anything
            suits, reason = False, f"the check of {component.name} failed: {describe(error)}"
        if suits:
            return component.name, refusal or reason
        refusal = refusal or reason
    raise ConfigError(
        f"No component can be chosen for this machine: {refusal or 'none is registered'}.",
        remedy="finqa plugins lists all; name one of them",
    )


def cuda_visible(devices: Path = Path("/dev")) -> bool:
    """Return True when the NVIDIA driver offers a device and CUDA_VISIBLE_DEVICES does not hide it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return False
    return any(device.name[6:].isdigit() for device in devices.glob("nvidia*")) or (devices / "dxg").exists()
