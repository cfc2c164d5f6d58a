"""Reads what a model is built of from its config.json alone: built on PyTorch's meta device, no weight exists."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from finqa_cli.errors import AuthenticationError, ConfigError, ServiceUnavailableError
from finqa_cli.types import Architecture, LinearLayer
from finqa_plugins.learners.torch.trained_model import ADAPTABLE, LOGIT_RESCALING

MOST_LAYERS = 1000
_ROUTERS = ("gate", "router", "shared_expert_gate")
_MODEL_REMEDY = "name a model folder, or a hub id of a model with a config.json"


def inspect(reference: str) -> Architecture:
    """What a model folder or hub id is built of.

    Raises:
        ConfigError: There is no such model, its config.json is broken, or transformers does not know the architecture
            as a causal language model.
        AuthenticationError: The hub wants a key, or its licence accepted.
        ServiceUnavailableError: The hub cannot be reached.
    """
    folder = Path(reference) if Path(reference).is_dir() else _fetch_config(reference).parent
    with _quiet():
        config = _read_config(folder, reference)
        stored = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None) or ""
        model = _build(config, reference)  # which writes its own dtype into the configuration
        return _describe(config, model, str(stored).removeprefix("torch."))


def _fetch_config(reference: str) -> Path:
    """config.json of a hub id, from the hub or its cache."""
    from huggingface_hub import constants, errors, hf_hub_download

    try:
        return Path(hf_hub_download(reference, "config.json"))
    except errors.GatedRepoError as error:
        raise AuthenticationError(
            f"The hub gives {reference!r} only to those who accepted its licence.",
            remedy=f"accept it at {constants.ENDPOINT}/{reference}, then: hf auth login",
        ) from error
    except (errors.HFValidationError, errors.RepositoryNotFoundError, errors.RemoteEntryNotFoundError) as error:
        raise ConfigError(
            f"{reference!r} is no model folder, and the hub has no model of that name with a config.json.",
            remedy=_MODEL_REMEDY,
        ) from error
    except (errors.HfHubHTTPError, OSError) as error:
        reason = str(error.__cause__ or error).strip().split("\n")[0]
        raise ServiceUnavailableError(
            f"{constants.ENDPOINT} cannot be asked for {reference!r}: {reason}",
            remedy="look at your connection, or name a model folder",
        ) from error


def _read_config(folder: Path, reference: str) -> Any:
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", remedy="copy the model's config.json again") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("model_type"), str):
        raise ConfigError(f"{path} names no model_type.", remedy="copy the model's config.json again")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers and its validators raise their own kinds
        raise _unbuildable(reference, raw["model_type"], error) from error
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if not isinstance(layers, int) or not 0 < layers <= MOST_LAYERS:
        raise ConfigError(f"{path} asks for {layers!r} layers.", remedy="copy the model's config.json again")
    return config


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


def _describe(config: Any, model: Any, dtype: str) -> Architecture:
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
    """What a configuration says, 0 where it does not: older ones have names of their own."""
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
    """What the cache holds after two tokens, halved; 0 where the model keeps something else than keys and values.

    Measured and not computed, because architectures differ (grouped heads, latent keys, layers without attention).
    """
    try:
        with torch.no_grad(), torch.device("meta"):
            cache = model(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=True).past_key_values
        layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
        return sum(int(layer.keys.numel() + layer.values.numel()) for layer in layers) // 2
    except Exception:  # a forward that looks into its tensors cannot run without them
        return 0


def _warnings(model: Any, linear: tuple[LinearLayer, ...], *, tied: bool, kept: int) -> Iterator[str]:
    if any(part.kind == "Conv1D" for part in linear):
        yield (
            "vLLM serves no adapter on Conv1D layers as GPT-2 has them: use the transformers engine "
            "(--engine transformers), or train all weights (--lora-rank 0)"
        )
    for option, neutral in LOGIT_RESCALING.items():
        if getattr(model.config, option, neutral) not in (None, neutral):
            yield f"it rescales its logits ({option}), which learner 'torch' does not support"
    if tied:
        yield "input and output embedding are one matrix: it is counted once, and training all weights changes both"
    if not kept:
        yield "keys and values per token could not be found out, so the engine's need is that of its weights alone"
    inner = sum(part.count * part.inputs * part.outputs for part in linear)
    outer = sum(part.weight.numel() for part in (model.get_input_embeddings(), model.get_output_embeddings()))
    if inner < 0.5 * (sum(part.numel() for part in model.parameters()) - outer):
        yield "most weights lie outside linear layers (fused experts?): an adapter does not reach them"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' warnings about token ids and kernels, which say nothing about the architecture."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
