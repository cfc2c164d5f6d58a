"""Builds a model on PyTorch's meta device, without weights, and describes its architecture."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from finqa_cli.errors import ConfigError
from finqa_cli.placement.known_models import structure_warnings
from finqa_cli.types import Architecture, LinearLayer
from finqa_plugins.learners.torch.config import LOGIT_RESCALING, MOST_LAYERS

ADAPTABLE = (nn.Linear, Conv1D)
"""Layers that LoRA can adapt. GPT-2's `Conv1D` is a linear layer whose weight is stored as [in, out]."""

_ROUTERS = ("gate", "router", "shared_expert_gate")


def build_and_describe(folder: Path, family: str, reference: str) -> Architecture:
    """Describe the model that transformers builds from a config.json.

    Args:
        folder: Folder with the config.json.
        family: Its model_type, for messages.
        reference: Name that the user gave.

    Raises:
        ConfigError: transformers does not know the architecture as a causal language model, or its sizes are invalid.
    """
    with _quiet():
        try:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        except Exception as error:  # transformers and its validators raise their own kinds
            raise _unbuildable(reference, family, error) from error
        layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
        if not isinstance(layers, int) or not 0 < layers <= MOST_LAYERS:
            raise ConfigError(
                f"{folder / 'config.json'} asks for {layers!r} layers.", remedy="copy the model's config.json again"
            )
        stored = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None) or ""
        model = _build(config, reference)  # overwrites the dtype in the configuration
        return describe(config, model, str(stored).removeprefix("torch."))


def _build(config: Any, reference: str) -> Any:
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False).eval()
        if model.get_output_embeddings() is None:
            raise ValueError("it has no output embedding")
    except Exception as error:  # each architecture checks its numbers in its own way
        raise _unbuildable(reference, config.model_type, error) from error
    return model


def _unbuildable(reference: str, family: str, error: Exception) -> ConfigError:
    reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return ConfigError(
        f"{reference!r} ({family}) cannot be built as a causal language model: {reason[:300]}",
        remedy="choose a causal language model that the installed transformers knows",
    )


def describe(config: Any, model: Any, dtype: str) -> Architecture:
    """Describe a model that was built from a configuration; `dtype` is the type of its stored weights."""
    text = config.get_text_config()
    linear = _linear_layers(model)
    heads, hidden = _number(text, "num_attention_heads"), _number(text, "hidden_size")
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    kept = _kv_values_per_token(model)
    names = tuple(dict.fromkeys(part.name for part in linear if part.name not in _ROUTERS))
    return Architecture(
        family=str(config.model_type),
        class_name=type(model).__name__,
        dtype=dtype,
        layers=int(text.num_hidden_layers),
        hidden=hidden,
        heads=heads,
        key_value_heads=_number(text, "num_key_value_heads") or heads,
        head_dim=_number(text, "head_dim") or (hidden // heads if heads else 0),
        vocabulary=int(model.get_input_embeddings().weight.shape[0]),
        context=_number(text, "max_position_embeddings"),
        tied=tied,
        parameters=sum(part.numel() for part in model.parameters()),
        kv_values_per_token=kept,
        linear=linear,
        lora_targets=names,
        warnings=tuple(_warnings(model, linear, tied=tied, kept=kept)),
    )


def _number(config: Any, name: str) -> int:
    """A number in a configuration, 0 if it has none: older families use other names."""
    value = getattr(config, name, None)
    return value if isinstance(value, int) else 0


def _linear_layers(model: Any) -> tuple[LinearLayer, ...]:
    """The linear layers by name and shape, in order of appearance, without the output head."""
    counts: dict[tuple[str, int, int, str], int] = {}
    head = model.get_output_embeddings()
    for path, part in model.named_modules():
        if isinstance(part, ADAPTABLE) and part is not head:
            inputs, outputs = part.weight.shape if isinstance(part, Conv1D) else reversed(part.weight.shape)
            key = (path.rpartition(".")[2], inputs, outputs, type(part).__name__)
            counts[key] = counts.get(key, 0) + 1
    return tuple(
        LinearLayer(name=name, inputs=inputs, outputs=outputs, count=count, kind=kind)
        for (name, inputs, outputs, kind), count in counts.items()
    )


def _kv_values_per_token(model: Any) -> int:
    """Values per token in the cache, measured with two tokens; 0 if it caches other things.

    They are measured, because architectures differ (grouped heads, latent keys, layers without attention).
    """
    try:
        with torch.no_grad(), torch.device("meta"):
            cache = model(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=True).past_key_values
        layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
        return sum(int(layer.keys.numel() + layer.values.numel()) for layer in layers) // 2
    except Exception:  # a forward pass that reads values cannot run without weights
        return 0


def _warnings(model: Any, linear: tuple[LinearLayer, ...], *, tied: bool, kept: int) -> Iterator[str]:
    for option, neutral in LOGIT_RESCALING.items():
        if getattr(model.config, option, neutral) not in (None, neutral):
            yield f"it rescales its logits ({option}), which learner 'torch' does not support"
    yield from structure_warnings(linear, tied=tied)
    if not kept:
        yield "keys and values per token could not be found out, so the engine's need is that of its weights alone"
    inner = sum(part.count * part.inputs * part.outputs for part in linear)
    outer = sum(part.weight.numel() for part in (model.get_input_embeddings(), model.get_output_embeddings()))
    if inner < 0.5 * (sum(part.numel() for part in model.parameters()) - outer):
        yield "most weights lie outside linear layers (fused experts?): an adapter does not reach them"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress transformers' warnings about token ids and kernels, which do not concern the architecture."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
