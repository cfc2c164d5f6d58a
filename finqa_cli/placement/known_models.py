"""The architecture of a model from its config.json alone: no torch, no weights, a few milliseconds."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from finqa_cli.documents import parse_json
from finqa_cli.types import Architecture, LinearLayer
from finqa_cli.types.architectures import default_targets

GATED = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Families of decoders with grouped-query attention and a gated MLP -> their class in transformers."""

RESCALES = {"logit_scale": 1.0, "logits_scaling": 1.0, "lm_head_multiplier": 1.0}
"""Options of a configuration that scale or cap the logits, and their values without an effect."""

_BIASES = {"llama": ("attention_bias", "mlp_bias"), "mistral": (), "qwen2": (), "qwen3": ("attention_bias",)}
"""Family -> the settings of biases that its configuration has."""

_GATED_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings"),
)
_SIZES = {
    "gpt2": ("vocab_size", "n_embd", "n_head", "n_layer", "n_positions"),
    **dict.fromkeys(("llama", "qwen2"), _GATED_SIZES),
    **dict.fromkeys(("mistral", "qwen3"), (*_GATED_SIZES, "head_dim")),
}
"""Family -> keys of sizes. If one is missing, the size is a default of transformers."""

_OTHER_NAMES = {"hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings"}
"""Further names that transformers accepts for the sizes of GPT-2."""


def read_architecture(model: str) -> Architecture | None:
    """The architecture of a model folder, of a model in the hub's cache, or of a well-known hub id.

    Returns:
        The architecture. None if none of these is found, or if the weights of the family cannot be counted from its
        configuration.
    """
    folder = Path(model)
    path = folder / "config.json" if folder.is_dir() else _cached(model)
    if path is not None:
        try:
            found = parse_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return architecture_of(found) if isinstance(found, Mapping) else None
    return known(model)


def known(model: str, *, by_part: bool = False) -> Architecture | None:
    """The architecture of a well-known hub id; with `by_part`, also of a hub id that contains a well-known name."""
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
    """Return the architecture that a configuration describes; None for an unknown family or a missing number.

    Args:
        config: The content of config.json. If the model has several parts, the configuration of its text model is used.
    """
    config = text_settings(config)
    try:
        if config["model_type"] in GATED:
            return _gated(config)
        if config["model_type"] == "gpt2":
            return _gpt2(config)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        pass
    return None


def text_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config.json that describes the text decoder: all of it, or a nested one."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) and nested else config


def is_spelled_out(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is complete and valid, so that its architecture can be computed without transformers.

    Missing values have defaults that differ between families and versions of transformers, and some values are errors
    there. For other configurations the caller must let transformers build the model to know its architecture.
    """
    family = config.get("model_type")
    others = {"text_config", "quantization_config", *RESCALES} & set(config)
    if family not in _SIZES or others or config.get("use_sliding_window"):
        return False
    if not all(_is_size(config.get(key)) for key in _SIZES[family]):
        return False
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    padding = config.get("pad_token_id")
    return (
        (_gpt2_builds(config) if family == "gpt2" else _gated_builds(config))
        and (padding is None or padding == 0 or (_is_size(padding) and padding < config["vocab_size"]))
        and isinstance(rope, Mapping)
        and rope.get("rope_type", "default") == "default"
    )


def _gated_builds(config: Mapping[str, Any]) -> bool:
    width, heads, kv_heads = (config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    switches = (config.get("tie_word_embeddings"), config.get("attention_bias", False), config.get("mlp_bias", False))
    return (
        config.get("hidden_act") == "silu"
        and all(isinstance(switch, bool) for switch in switches)
        and (_is_size(config.get("head_dim")) or ("head_dim" not in config and width % heads == 0))
        and heads % kv_heads == 0
    )


def _gpt2_builds(config: Mapping[str, Any]) -> bool:
    return (
        config.get("activation_function") == "gelu_new"
        and config.get("tie_word_embeddings") is True
        and config.get("add_cross_attention", False) is False
        and (config.get("n_inner") is None or _is_size(config["n_inner"]))
        and config["n_embd"] % config["n_head"] == 0
        and not _OTHER_NAMES & set(config)
    )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _gated(config: Mapping[str, Any]) -> Architecture:
    family = str(config["model_type"])
    layers, hidden, inner = (_size(config, key) for key in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    heads = _size(config, "num_attention_heads")
    kv_heads = _size(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads
    width = _size(config, "head_dim") if config.get("head_dim") else hidden // heads
    vocabulary, tied = _size(config, "vocab_size"), bool(config.get("tie_word_embeddings", False))
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
    if "attention_bias" in _BIASES[family] and config.get("attention_bias"):
        biased |= {"q_proj", "k_proj", "v_proj", "o_proj"}
    if "mlp_bias" in _BIASES[family] and config.get("mlp_bias"):
        biased |= {"gate_proj", "up_proj", "down_proj"}
    norms = 2 * hidden + (2 * width if family == "qwen3" else 0)
    layer = norms + sum(part.inputs * part.outputs + (part.outputs if part.name in biased else 0) for part in linear)
    return Architecture(
        family=family,
        class_name=GATED[family],
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
        lora_targets=default_targets([part.name for part in linear]),
        layer_kinds=_kinds(config),
        warnings=tuple(structure_warnings(linear, tied=tied)),
    )


def _gpt2(config: Mapping[str, Any]) -> Architecture:
    layers, hidden, heads = (_size(config, key) for key in ("n_layer", "n_embd", "n_head"))
    positions, vocabulary = _size(config, "n_positions"), _size(config, "vocab_size")
    inner = _size(config, "n_inner") if config.get("n_inner") else 4 * hidden
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
        class_name="GPT2LMHeadModel",
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
        lora_targets=default_targets(list(dict.fromkeys(part.name for part in linear))),
        layer_kinds=_kinds(config),
        warnings=tuple(structure_warnings(linear, tied=True)),
    )


def _kinds(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds of the blocks, as transformers names them; Mistral has a window unless its configuration says null."""
    if isinstance(kinds := config.get("layer_types"), list) and kinds:
        return tuple(dict.fromkeys(map(str, kinds)))
    window = config.get("sliding_window", 4096) if config["model_type"] == "mistral" else None
    return ("sliding_attention" if window else "full_attention",)


def structure_warnings(linear: Sequence[LinearLayer], *, tied: bool) -> Iterator[str]:
    """What a user should know about linear layers and embeddings before choosing a model, one sentence each."""
    if any(part.kind == "Conv1D" for part in linear):
        yield (
            "vLLM serves no adapter on Conv1D layers as GPT-2 has them: use the transformers engine "
            "(--engine transformers), or train all weights (--lora-rank 0)"
        )
    if tied:
        yield "input and output embedding are one matrix: it is counted once, and training all weights changes both"


def _size(config: Mapping[str, Any], key: str) -> int:
    """A positive whole number of a configuration; anything else is a ValueError."""
    if not _is_size(config[key]):
        raise ValueError(f"{key} is {config[key]!r}")
    return int(config[key])


def _cached(model: str) -> Path | None:
    """Path of config.json of a hub id in the hub's cache on this machine; None if it is not there."""
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
