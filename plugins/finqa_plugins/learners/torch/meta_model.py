"""Builds a model on PyTorch's meta device, without weights, and describes its architecture."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from finqa_cli.errors import ConfigError
from finqa_cli.placement.known_models import structure_warnings
from finqa_cli.types import Architecture, LinearLayer
from finqa_plugins.learners.torch.config import MOST_LAYERS
from finqa_plugins.model_facts import (
    ModelFacts,
    decoder_layers,
    read_facts,
    reason_of,
    target_names,
    text_config,
    text_decoder,
)


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
        facts = read_facts(config)
        if not 0 < facts.layers <= MOST_LAYERS:
            raise ConfigError(
                f"{folder / 'config.json'} asks for {facts.layers} layers.",
                remedy="copy the model's config.json again",
            )
        stored = getattr(config, "dtype", None) or getattr(text_config(config), "dtype", None) or ""
        model = build_without_weights(config, reference)  # overwrites the dtype in the configuration
        return describe(facts, model, str(stored).removeprefix("torch."))


def build_without_weights(config: Any, reference: str) -> Any:
    """The model of a configuration on the meta device.

    Raises:
        ConfigError: transformers cannot build it as a causal language model.
    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False).eval()
        if model.get_output_embeddings() is None:
            raise ValueError("it has no output embedding")
    except Exception as error:  # each architecture checks its numbers in its own way
        raise _unbuildable(reference, config.model_type, error) from error
    return model


def _unbuildable(reference: str, family: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{reference!r} ({family}) cannot be built as a causal language model: {reason_of(error)}",
        remedy="choose a causal language model that the installed transformers knows",
    )


def describe(facts: ModelFacts, model: Any, dtype: str) -> Architecture:
    """Describe a model that was built from a configuration; `dtype` is the type of its stored weights."""
    linear = _linear_layers(model)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    kept = _kv_values_per_token(model)
    return Architecture(
        family=facts.family,
        class_name=type(model).__name__,
        dtype=dtype,
        layers=facts.layers,
        hidden=facts.hidden,
        heads=facts.heads,
        key_value_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        vocabulary=int(model.get_input_embeddings().weight.shape[0]),
        context=facts.context,
        tied=tied,
        parameters=sum(part.numel() for part in model.parameters()),
        kv_values_per_token=kept,
        linear=linear,
        lora_targets=target_names(model),
        layer_kinds=tuple(dict.fromkeys(facts.kinds)),
        warnings=(*facts.warnings(), *_warnings(model, linear, tied=tied, kept=kept)),
    )


def _linear_layers(model: Any) -> tuple[LinearLayer, ...]:
    """The linear layers of the text decoder by name and shape, in order of appearance, without the output head."""
    counts: dict[tuple[str, int, int, str], int] = {}
    for path, part in decoder_layers(model).items():
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
    yield from structure_warnings(linear, tied=tied)
    if not kept:
        yield "keys and values per token could not be found out, so the engine's need is that of its weights alone"
    inner = sum(part.count * part.inputs * part.outputs for part in linear)
    outer = {id(part.weight) for part in (model.get_input_embeddings(), model.get_output_embeddings())}
    blocks = sum(part.numel() for part in text_decoder(model).parameters() if id(part) not in outer)
    if inner < 0.5 * blocks:
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
