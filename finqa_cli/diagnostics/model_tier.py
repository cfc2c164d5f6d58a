"""An inspected model as a file of the model tier, which `--config` takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from finqa_cli.diagnostics.model_inspection import Inspection

Table = Mapping[str, str | int | float | list[str]]


def tier_text(inspection: Inspection) -> str:
    """TOML: what was found as a comment, then the settings that follow from it."""
    lines = [*(f"# {line}" for line in _facts(inspection)), "", 'tier = "model"']
    for section, table in _settings(inspection).items():
        lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _settings(inspection: Inspection) -> dict[str, Table]:
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
    yield "codecs that fit: " + (", ".join(inspection.codecs) or "none")
    for warning in inspection.warnings:
        yield "warning: " + " ".join(warning.split())


def _toml(value: str | int | float | list[str]) -> str:
    """JSON's strings, numbers and lists are TOML's as well, but for the delete character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
