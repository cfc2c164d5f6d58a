"""Reads a model's architecture and finds the settings that fit it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import FinqaError, MissingDependencyError, StorageError, UsageError
from finqa_cli.extend import registry
from finqa_cli.placement import memory_formulas
from finqa_cli.placement.placement_plan import plan
from finqa_cli.placement.placement_types import Device, EngineKind, Placement, Refusal, Request, Workload
from finqa_cli.settings import Settings
from finqa_cli.types import Architecture
from finqa_cli.wiring.build import make_codec
from finqa_cli.wiring.policies import check_on_hub, resolve

GB = 1e9
Table = Mapping[str, str | int | float | list[str]]
RANKS = (8, 16, 32, 64)
GPU_COUNTS = (1, 2, 4, 8)
ENGINE = EngineKind(name="vllm", spread="several", sleeps=True, graphs=memory_formulas.GIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A model, and the settings that fit it.

    Attributes:
        name: Name that the user gave.
        model: Folder or hub id that was read; for an adapter, its base model.
        architecture: Its architecture.
        format: Facts about its turns, from the codec that `auto` chooses; empty if there is none.
        rank: Rank of the adapter; 0 if the model has no layer that can be adapted.
        targets: Layers to adapt.
        token_budget: Tokens of a micro-batch.
        gpu_bytes: Memory of one GPU.
        plans: Number of such GPUs -> how training is placed on them, or why it does not fit.
        learner_bytes: Memory that the learner needs on its device.
        warnings: Warnings for the user, a sentence each.
    """

    name: str
    model: str
    architecture: Architecture
    format: Mapping[str, Any]
    rank: int
    targets: tuple[str, ...]
    token_budget: int
    gpu_bytes: float
    plans: Mapping[int, Placement | Refusal]
    learner_bytes: int
    warnings: tuple[str, ...]


def inspect(name: str, *, rank: int, gpu_bytes: float) -> Inspection:
    """Reads configuration and tokenizer of a model, never its weights.

    Raises:
        FinqaError: There is no such model, the hub cannot be reached, or no plugin knows the architecture.
    """
    policy = resolve(name)
    check_on_hub(policy)
    architecture: Architecture | None = registry().first("inspect_model", Architecture, reference=policy.model)
    if architecture is None:
        raise MissingDependencyError(
            f"No installed plugin can read the architecture of {policy.model!r}.", remedy="pip install 'finqa[train]'"
        )
    turns, reason = _format(policy.model)
    targets = architecture.lora_targets
    rank = rank if targets else 0
    tokens = Settings().train.token_budget
    needed = int(sum(memory_formulas.learner_items(architecture, tokens, rank=rank, targets=targets).values()))
    work = Workload(plays=True, trains=True, lora_rank=rank, lora_targets=targets)
    plans = {
        count: plan([Device(index=n, total=gpu_bytes) for n in range(count)], architecture, ENGINE, work, Request())
        for count in GPU_COUNTS
    }
    warnings = [
        *([f"no codec supports it, so it cannot play episodes: {reason}"] if reason else []),
        *architecture.warnings,
    ]
    if policy.adapter is not None:
        warnings.append(f"{name} is an adapter; this is its base model {policy.model}")
    if not any(isinstance(found, Placement) for found in plans.values()):
        warnings.append(f"eight GPUs of {gpu_bytes / GB:.0f} GB are too small for engine and learner")
    return Inspection(
        name=name,
        model=policy.model,
        architecture=architecture,
        format=turns,
        rank=rank,
        targets=targets,
        token_budget=tokens,
        gpu_bytes=gpu_bytes,
        plans=plans,
        learner_bytes=needed,
        warnings=tuple(warnings),
    )


def write(text: str, out: Path, *, force: bool) -> None:
    """Writes a settings file; `force` overwrites an existing one.

    Raises:
        UsageError: The file exists and `force` is False, or its name does not end in .toml.
        StorageError: The file cannot be written.
    """
    if out.suffix.lower() != ".toml":
        raise UsageError(f"--out writes TOML, so its name must end in .toml, not {out.name!r}.")
    try:
        with out.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{out} already exists.", remedy="name another file with --out, or give --force") from error
    except OSError as error:
        raise StorageError(f"Cannot write {out}: {error.strerror}.", remedy="name another file with --out") from error


def _format(model: str) -> tuple[dict[str, Any], str]:
    """Returns facts about the turns of a model, and why no codec supports it (empty if one does)."""
    try:
        return dict(make_codec(Settings(), model).facts()), ""
    except FinqaError as error:
        return {}, error.message


def tier_text(inspection: Inspection) -> str:
    """Returns the TOML text of a model tier: the facts as comments, then the settings that follow from them."""
    lines = [*(f"# {line}" for line in _facts(inspection)), "", 'tier = "model"']
    for section, table in _tier_settings(inspection).items():
        lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _tier_settings(inspection: Inspection) -> dict[str, Table]:
    adapts = bool(inspection.rank)
    lora: Table = {"rank": inspection.rank, "target_modules": list(inspection.targets)} if adapts else {"rank": 0}
    return {
        "model": {"name": inspection.name},
        "lora": lora,
    }


def _facts(inspection: Inspection) -> Iterator[str]:
    found = inspection.architecture
    yield f"{found.class_name} ({found.family}), {found.parameters:,} parameters: finqa model inspect"
    yield (
        f"{found.layers} layers, hidden {found.hidden}, {found.heads} heads of {found.head_dim}, "
        f"{found.key_value_heads} for keys and values, vocabulary {found.vocabulary}, context {found.context or 'open'}"
    )
    yield "linear layers: " + ", ".join(dict.fromkeys(part.name for part in found.linear))
    yield "turns: " + ("; ".join(f"{name} {value}" for name, value in inspection.format.items()) or "no codec fits")
    for warning in inspection.warnings:
        yield "warning: " + " ".join(warning.split())


def _toml(value: str | int | float | list[str]) -> str:
    """Returns a value as TOML. JSON strings, numbers and lists are valid TOML except for the delete character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
