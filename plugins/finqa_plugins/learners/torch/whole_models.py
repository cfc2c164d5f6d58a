"""Complete models: merges adapters into their base, and writes policies in a given precision.

A LoRA adapter is merged as `W + scale * B A` in float32 (Hu et al., 2021, section 4.1).
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError
from finqa_cli.local_models import local_model
from finqa_cli.types import PolicyVersion
from finqa_plugins.learners.torch.state import publish_model
from finqa_plugins.learners.torch.trained_model import load_base
from finqa_plugins.learners.torch.verl_shards import description_of, is_sharded, load_sharded
from finqa_plugins.model_facts import foreign_code

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
"""Copied from the base: transformers 5 writes no `tokenizer.model`, which llama.cpp reads for Llama and Gemma, and
names a class in `tokenizer_config.json` that transformers 4, which llama.cpp's converter was long pinned to, lacks."""

_CONFIG, _WEIGHTS, _OLD_WEIGHTS = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_COPIED = ".base_layer.weight"
"""End of the names under which PEFT keeps copies of adapted embeddings: weights of the base, not of the adapter."""


def merge_adapter(policy: PolicyVersion, folder: Path) -> PolicyVersion | None:
    """Writes the merged model in float32, with the base's tokenizer; replaces `folder`.

    The model is made on the CPU, which needs memory for the base's weights in float32. Weights that two layers share
    (tied embeddings) are separated if one of the layers is adapted.

    Returns:
        The merged model as version 0; None if the adapter is of another kind than LoRA.

    Raises:
        ConfigError: The base cannot be loaded, files are damaged, or the adapter belongs to another architecture.
        StorageError: The disk is full or is not writable.
    """
    merged = load_merged(policy)
    if merged is None:
        return None
    publish_model(merged, policy.model, folder)
    return PolicyVersion(number=0, model=str(folder))


def load_merged(policy: PolicyVersion) -> Any | None:
    """The merged model in float32 on the CPU; None if the adapter is of another kind than LoRA.

    Raises:
        ConfigError: The base cannot be loaded, files are damaged, or the adapter belongs to another architecture.
    """
    assert policy.adapter is not None, "only adapters are merged"
    kind = _read_config(policy.adapter).get("peft_type")
    if kind != "LORA":
        return None
    tensors = _read_weights(policy.adapter)
    base = load_base(policy.model, dtype=torch.float32, device=torch.device("cpu"))
    _untie(base, tensors)
    return _adapted(base, policy, tensors).merge_and_unload()


def _read_config(adapter: Path) -> Mapping[str, Any]:
    try:
        config: Mapping[str, Any] = dict(parse_json((adapter / _CONFIG).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{adapter / _CONFIG} cannot be read: {error}.") from error
    return config


def _read_weights(adapter: Path) -> dict[str, Tensor]:
    path = adapter / _WEIGHTS
    if not path.exists() and (adapter / _OLD_WEIGHTS).exists():
        path = adapter / _OLD_WEIGHTS  # of PEFT before 0.7; its tensors are read, never its code
    with foreign_code(f"{path} cannot be read", remedy="copy the adapter again"):
        tensors: dict[str, Tensor] = (
            load_file(path) if path.name == _WEIGHTS else torch.load(path, map_location="cpu", weights_only=True)
        )
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ConfigError(f"The adapter {adapter} contains numbers that are not finite, in {name}.")
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(_COPIED)}


def _untie(base: Any, tensors: Mapping[str, Tensor]) -> None:
    head, embedding = base.get_output_embeddings(), base.get_input_embeddings()
    if head.weight is not embedding.weight:
        return
    ends = [name.rpartition(".")[2] for name, part in base.named_modules() if part is head or part is embedding]
    if any(f".{end}.lora_" in name for end in ends for name in tensors):
        head.weight = nn.Parameter(head.weight.detach().clone())
        base.config.tie_word_embeddings = False


def _adapted(base: Any, policy: PolicyVersion, tensors: Mapping[str, Tensor]) -> Any:
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict

    try:
        config = PeftConfig.from_pretrained(policy.adapter)
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):  # the new adapter is random
            warnings.simplefilter("ignore")  # advice for training, on ties and names, and old names of transformers
            model = get_peft_model(base, config)
    except (ValueError, TypeError, KeyError) as error:  # a layer is not there, or an option is not known
        raise _misfit(policy, str(error).strip().splitlines()[0]) from error
    wanted = {name: tuple(value.shape) for name, value in _state(model).items()}
    for name in sorted(wanted.keys() | tensors.keys()):
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != wanted.get(name):
            raise _misfit(policy, f"{name} has shape {wanted.get(name)} there and {found} in the adapter")
    set_peft_model_state_dict(model, dict(tensors))
    return model


def _state(model: Any) -> Mapping[str, Tensor]:
    from peft import get_peft_model_state_dict

    state: Mapping[str, Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
    return state


def _misfit(policy: PolicyVersion, reason: str) -> ConfigError:
    return ConfigError(
        f"The adapter {policy.adapter} does not fit {policy.model}, the model that it names as its base: {reason}.",
        remedy=f"correct base_model_name_or_path in {policy.adapter}/{_CONFIG}; `finqa model inspect {policy.model}` "
        "shows the architecture of that model",
    )


def write_model(policy: PolicyVersion, folder: Path, dtype: str) -> PolicyVersion | None:
    """Writes weights, configuration and tokenizer; replaces `folder`.

    Adapters are merged in float32, and the result is rounded once. The model may be a folder of FSDP shards.

    Returns:
        The model; None if the adapter is of another kind than LoRA.

    Raises:
        ConfigError: A part cannot be loaded, does not fit, is not finite, or exceeds the range of the precision.
        DataError: Shards are missing or damaged.
        StorageError: The disk is full or is not writable.
    """
    sharded = is_sharded(Path(policy.model))
    source = str(description_of(Path(policy.model))) if sharded else policy.model
    if policy.adapter is not None:
        model = load_merged(policy)
    elif sharded:
        model = load_sharded(Path(policy.model))
    else:
        model = load_base(policy.model, dtype=torch.float32, device=torch.device("cpu"))
    if model is None:
        return None
    model = model.to(DTYPES[dtype])
    _check_finite(model, policy, dtype)
    model.config.dtype = DTYPES[dtype]
    publish_model(model, source, folder)
    _keep_tokenizer(source, folder)
    return PolicyVersion(number=policy.number, model=str(folder))


def _check_finite(model: Any, policy: PolicyVersion, dtype: str) -> None:
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise ConfigError(
                f"{name} of {policy.adapter or policy.model} contains numbers that are not finite in {dtype}.",
                remedy="--dtype bfloat16"
                if dtype == "float16"
                else "--step N of an earlier checkpoint, or another model",
            )


def _keep_tokenizer(source: str, folder: Path) -> None:
    from transformers.utils import cached_file

    for name in _TOKENIZER:
        found = cached_file(
            local_model(source),
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
        if found is not None:
            shutil.copyfile(found, folder / name)
