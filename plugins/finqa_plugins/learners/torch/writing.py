"""Writes a policy as one whole model in the precision that its user needs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from finqa_cli.errors import ConfigError
from finqa_cli.types import PolicyVersion
from finqa_plugins.learners.torch.distributed.shards import description_of, is_sharded, load_sharded
from finqa_plugins.learners.torch.merge import merged_model
from finqa_plugins.learners.torch.state import publish_model
from finqa_plugins.learners.torch.trained_model import load_base

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
"""Kept as the base has them: transformers 5 writes no `tokenizer.model`, which llama.cpp reads for Llama and Gemma, and
names a class in `tokenizer_config.json` that transformers 4, which llama.cpp's converter was long pinned to, lacks."""


def write(policy: PolicyVersion, folder: Path, dtype: str) -> PolicyVersion | None:
    """Writes weights, configuration and tokenizer in place of whatever `folder` was.

    Adapters are merged in float32, and the sum is rounded once. The model may be a folder of FSDP shards.

    Returns:
        The model; None where the adapter is of another kind than LoRA.

    Raises:
        ConfigError: A part cannot be loaded, does not fit, is not finite, or leaves the range of the precision.
        DataError: Shards are missing or damaged.
        StorageError: The disk is full or may not be written to.
    """
    sharded = is_sharded(Path(policy.model))
    source = str(description_of(Path(policy.model))) if sharded else policy.model
    if policy.adapter is not None:
        model = merged_model(policy)
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
                f"{name} of {policy.adapter or policy.model} holds numbers that are not finite in {dtype}.",
                remedy="--dtype bfloat16" if dtype == "float16" else "export an earlier checkpoint: --step N",
            )


def _keep_tokenizer(source: str, folder: Path) -> None:
    from transformers.utils import cached_file

    for name in _TOKENIZER:
        found = cached_file(
            source,
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
        if found is not None:
            shutil.copyfile(found, folder / name)
