"""The architecture of a model from its config.json alone: no torch, no weights, a few milliseconds."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from finqa_cli.types import Architecture, LinearLayer

GATED = ("llama", "mistral", "qwen2", "qwen3")
"""Families of decoders with grouped heads and a gated MLP."""


def read_architecture(model: str) -> Architecture | None:
    """The architecture of a model folder, of a model in the hub's cache, or of a well-known hub id.

    Returns:
        None where none of these is found, or where the family is not one whose weights can be counted from its numbers.
    """
    folder = Path(model)
    path = folder / "config.json" if folder.is_dir() else _cached(model)
    if path is not None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return architecture_of(found) if isinstance(found, Mapping) else None
    return known(model)


def known(model: str, *, by_part: bool = False) -> Architecture | None:
    """The architecture of a well-known hub id; `by_part` also of one whose name contains a well-known name."""
    table = _known()
    if model in table:
        return architecture_of(table[model])
    if not by_part:
        return None
    name = model.rpartition("/")[2].lower()
    names = {identifier.rpartition("/")[2].lower(): identifier for identifier in table}
    fitting = [short for short in names if f"{short}-" in f"{name}-"]
    return architecture_of(table[names[max(fitting, key=len)]]) if fitting else None


def smaller_models(parameters: int) -> Iterator[str]:
    """Well-known Qwen3 models with fewer parameters than this, the largest first."""
    for identifier, config in reversed(list(_known().items())):
        if config["model_type"] == "qwen3":
            found = architecture_of(config)
            if found is not None and found.parameters < parameters:
                yield identifier


def architecture_of(config: Mapping[str, Any]) -> Architecture | None:
    """Returns the architecture that a configuration describes; None for an unknown family or a missing number.

    Args:
        config: The content of config.json; of a model with several parts, that of its text model is taken.
    """
    config = config.get("text_config") or config
    try:
        if config["model_type"] in GATED:
            return _gated(config)
        if config["model_type"] == "gpt2":
            return _gpt2(config)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        pass
    return None


def _gated(config: Mapping[str, Any]) -> Architecture:
    family = str(config["model_type"])
    layers, hidden, inner = (int(config[key]) for key in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    width = int(config.get("head_dim") or hidden // heads)
    vocabulary, tied = int(config["vocab_size"]), bool(config.get("tie_word_embeddings", False))
    shapes = (
        ("q_proj", hidden, heads * width),
        ("k_proj", hidden, kv_heads * width),
        ("v_proj", hidden, kv_heads * width),
        ("o_proj", heads * width, hidden),
        ("gate_proj", hidden, inner),
        ("up_proj", hidden, inner),
        ("down_proj", inner, hidden),
    )
    linear = tuple(
        LinearLayer(name=name, inputs=inputs, outputs=outputs, count=layers, kind="Linear")
        for name, inputs, outputs in shapes
    )
    biased = {"q_proj", "k_proj", "v_proj"} if family == "qwen2" else set()
    if config.get("attention_bias"):
        biased |= {"q_proj", "k_proj", "v_proj", "o_proj"}
    if config.get("mlp_bias"):
        biased |= {"gate_proj", "up_proj", "down_proj"}
    norms = 2 * hidden + (2 * width if family == "qwen3" else 0)
    layer = norms + sum(part.inputs * part.outputs + (part.outputs if part.name in biased else 0) for part in linear)
    return Architecture(
        family=family,
        class_name=str((config.get("architectures") or [""])[0]),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or ""),
        layers=layers,
        hidden=hidden,
        heads=heads,
        key_value_heads=kv_heads,
        head_dim=width,
        vocabulary=vocabulary,
        context=int(config.get("max_position_embeddings") or 0),
        tied=tied,
        parameters=layers * layer + hidden + vocabulary * hidden * (1 if tied else 2),
        kv_values_per_token=2 * layers * kv_heads * width,
        linear=linear,
        lora_targets=tuple(part.name for part in linear),
    )


def _gpt2(config: Mapping[str, Any]) -> Architecture:
    layers, hidden, heads = (int(config[key]) for key in ("n_layer", "n_embd", "n_head"))
    positions, vocabulary = int(config["n_positions"]), int(config["vocab_size"])
    inner = int(config.get("n_inner") or 4 * hidden)
    # GPT-2 has two layers named c_proj, of different shapes.
    shapes = (
        ("c_attn", hidden, 3 * hidden),
        ("c_proj", hidden, hidden),
        ("c_fc", hidden, inner),
        ("c_proj", inner, hidden),
    )
    linear = tuple(
        LinearLayer(name=name, inputs=inputs, outputs=outputs, count=layers, kind="Conv1D")
        for name, inputs, outputs in shapes
    )
    layer = 4 * hidden + sum(part.inputs * part.outputs + part.outputs for part in linear)
    return Architecture(
        family="gpt2",
        class_name=str((config.get("architectures") or [""])[0]),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or ""),
        layers=layers,
        hidden=hidden,
        heads=heads,
        key_value_heads=heads,
        head_dim=hidden // heads,
        vocabulary=vocabulary,
        context=positions,
        tied=True,
        parameters=layers * layer + 2 * hidden + (vocabulary + positions) * hidden,
        kv_values_per_token=2 * layers * hidden,
        linear=linear,
        lora_targets=("c_attn", "c_proj", "c_fc"),
    )


def _cached(model: str) -> Path | None:
    """config.json of a hub id in the hub's cache on this machine."""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


@cache
def _known() -> Mapping[str, Mapping[str, Any]]:
    text = (resources.files("finqa_cli.placement") / "known_models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
