"""Adapters that engines do not serve beside their base model: they are merged into it first, as training does.

Engines serve LoRA as `W + scale * B A` on linear layers. DoRA, adapted embeddings, whole layers that were trained
(`modules_to_save`) and ranks by layer are merged in float32 into a complete model.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from finqa_cli.deletion import temporary_folder
from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.types import PolicyVersion
from finqa_cli.types.adapters import special_features

CONFIG, WEIGHTS, OLD_WEIGHTS = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"

_PLAIN = (".lora_A.weight", ".lora_B.weight", ".base_layer.weight")
"""Ends of the names of tensors in plain adapters; PEFT adds copies of the base's adapted embeddings."""


def merge_reason(adapter: Path) -> str:
    """Return why an adapter has to be merged to be served; empty if it is plain LoRA, or if its files are damaged."""
    try:
        config = parse_json((adapter / CONFIG).read_text(encoding="utf-8"))
        if features := special_features(config):
            return ", ".join(features)
        if not (adapter / WEIGHTS).exists():
            return OLD_WEIGHTS if (adapter / OLD_WEIGHTS).exists() else ""
        names = _tensor_names(adapter / WEIGHTS)
    except (OSError, ValueError, AttributeError, struct.error):
        return ""  # the engine reports what is damaged
    return next((name for name in sorted(names) if not name.endswith(_PLAIN)), "")


def _tensor_names(path: Path) -> set[str]:
    """Names in the header of a safetensors file (https://huggingface.co/docs/safetensors)."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        return set(json.loads(file.read(min(size, path.stat().st_size)))) - {"__metadata__"}


@contextmanager
def servable(
    settings: Settings, policy: PolicyVersion, run_dir: Path | None, reporter: Reporter
) -> Iterator[PolicyVersion]:
    """Yield the policy, or its adapter merged into the base, in a folder that is deleted when the block ends.

    Args:
        settings: Settings of the engine. Engines on a server of their own load adapters themselves.
        policy: The policy to serve.
        run_dir: Folder of the run, which gets the merged model; None: a temporary folder.
        reporter: Shows the merge.

    Raises:
        ConfigError: The adapter does not fit its base, or no plugin merges this kind of adapter.
        StorageError: The disk is full or not writable.
    """
    reason = merge_reason(policy.adapter) if policy.adapter is not None else ""
    if not reason or registry().find("engine", settings.engine.name).remote:
        yield policy
        return
    with temporary_folder("merged-", within=run_dir) as folder:
        reporter.line(f"Merging {policy.adapter} into {policy.model}, because engines do not serve its {reason}.")
        merged: PolicyVersion | None = registry().first(
            "merge_policy", PolicyVersion, policy=policy, folder=Path(folder) / "model"
        )
        if merged is None:
            raise ConfigError(
                f"No plugin merges the adapter {policy.adapter} ({reason}) into its base.",
                remedy="pip install 'finqa[train]' for adapters of LoRA; or name a whole model",
            )
        yield replace(merged, number=0)
