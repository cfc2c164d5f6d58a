"""Chooses the device of a model and computes whether it fits there, from its config, before weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from finqa_cli.errors import ConfigError
from finqa_cli.local_models import local_model
from finqa_cli.placement.host_resources import available_memory
from finqa_cli.placement.known_models import read_architecture
from finqa_plugins.engines.transformers.config import MAX_PROMPT_THREADS
from finqa_plugins.model_facts import read_facts

GIB = 1 << 30
FORWARD_TOKENS = 4096
"""Largest number of tokens of one forward pass; it bounds activations and, with an opening, attention scores."""
PART_TOKENS = FORWARD_TOKENS // MAX_PROMPT_THREADS
"""Largest number of tokens of each part that threads compute in parallel."""

UNLIMITED_CONTEXT = 4096
"""Longest sequence of a model whose configuration names no limit, in tokens."""


def choose_device(
    name: str, *, replica: int, replicas: int, cuda_devices: int, planned: tuple[int, ...] = ()
) -> torch.device:
    """`auto`, `cpu` or `cuda` as a device: on CUDA each replica has its own, the first of `planned` if it is set.

    Raises:
        ConfigError: There is no CUDA device, or fewer than replicas.
    """
    if name == "cpu" or (name == "auto" and not cuda_devices):
        return torch.device("cpu")
    if not cuda_devices:
        raise ConfigError(
            "The transformers engine was set to CUDA, but torch finds no CUDA device.",
            remedy="--set engine.options.device=cpu",
        )
    if replicas > cuda_devices:
        raise ConfigError(
            f"Each replica of the transformers engine needs its own CUDA device: {replicas} replicas, "
            f"{cuda_devices} devices.",
            remedy=f"--engine-replicas {cuda_devices}",
        )
    return torch.device("cuda", planned[0] if planned else replica)


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a model needs at least.

    Attributes:
        weights: All parameters.
        keys_values: Keys and values of one longest sequence; with `kv_cache_gb`, twice that size (batch and cache), but
            at most twice the size of a full batch of longest sequences.
        activations: Activations of the largest forward pass and of drawing one token for a full batch.
    """

    weights: int
    keys_values: int
    activations: int

    @property
    def total(self) -> int:
        """Bytes in total."""
        return self.weights + self.keys_values + self.activations

    def __str__(self) -> str:
        return (
            f"{_gib(self.total)} GiB (weights {_gib(self.weights)}, keys and values {_gib(self.keys_values)}, "
            f"activations {_gib(self.activations)})"
        )


def need(config: Any, *, dtype: torch.dtype, max_batch: int, max_context: int, kv_bytes: int | None) -> Need:
    """The memory that a model of this transformers config needs.

    Args:
        config: Config of the model.
        dtype: Type of weights, keys and values.
        max_batch: Rows decoded together.
        max_context: Longest sequence in tokens, or 0 for the model's own limit.
        kv_bytes: Bytes for the keys and values of one batch, and the same again for the cache; None if not set.
    """
    facts = read_facts(config)
    token = facts.layers * 2 * facts.kv_heads * facts.head_dim * dtype.itemsize
    context = facts.context or UNLIMITED_CONTEXT
    context = min(context, max_context or context)
    columns = 4 * facts.hidden + 2 * facts.inner
    # Drawing needs logits in their dtype, log-probabilities and probabilities in fp32, and their sums in fp64.
    drawing = max_batch * facts.vocabulary * (dtype.itemsize + 4 + 4 + 8)
    return Need(
        weights=count_parameters(config) * dtype.itemsize,
        keys_values=token * context if kv_bytes is None else min(2 * kv_bytes, 2 * token * context * max_batch),
        activations=FORWARD_TOKENS * columns * dtype.itemsize + drawing,
    )


def count_parameters(config: Any) -> int:
    """Number of parameters of the model of a transformers config, without its weights."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())


def known_parameters(model: str) -> int:
    """Number of parameters of a model folder or hub id; 0 if its configuration cannot be read."""
    if (found := read_architecture(model)) is not None:
        return found.parameters
    try:
        return count_parameters(AutoConfig.from_pretrained(local_model(model)))
    except Exception:  # loading the model reports what is wrong with it
        return 0


def room_on(device: torch.device, *, share: float) -> int | None:
    """Bytes available: on CUDA at most `share` of the device, else those of machine and cgroup; None if unknown."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return min(int(free), int(total * share))
    return available_memory()


def does_not_fit(model: str, needs: Need, room: int | None, *, device: torch.device, dtype: torch.dtype) -> ConfigError:
    """The error for a model that is too large; its remedy lists the options that lower each part of the need."""
    where = "this machine" if device.type == "cpu" else f"{device}"
    there = f" It may take {_gib(room)} GiB of {where}." if room is not None else ""
    flags = ["a smaller --model"]
    if dtype == torch.float32:
        flags.append("--set engine.options.dtype=bfloat16 (halves weights, keys and values)")
    flags += ["--set engine.options.kv_cache_gb=N (keys and values)", "--set engine.options.max_batch=N (activations)"]
    if device.type == "cuda":
        flags.append("a higher --gpu-memory-utilization")
    return ConfigError(f"The model {model!r} needs {needs} on {where}.{there}", remedy=", ".join(flags))


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}" if size >= GIB // 10 else f"{size / GIB:.3f}"
