"""The model of a learner: loaded, adapted, packed and sharded over the processes."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from finqa_cli.contracts import LearnerContext
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.types import Architecture, Sample
from finqa_plugins.learners.torch.config import LOGIT_RESCALING, TorchLearnerConfig
from finqa_plugins.learners.torch.distributed.process_group import SingleProcess, on_device
from finqa_plugins.learners.torch.distributed.sharding import PolicyForward, shard
from finqa_plugins.learners.torch.forward import widens_head
from finqa_plugins.learners.torch.memory_use import Recomputation, known_architecture, tokens_at_once
from finqa_plugins.learners.torch.meta_model import ADAPTABLE
from finqa_plugins.learners.torch.packed_rows import attend_within_segments, takes_packed_rows
from finqa_plugins.learners.torch.state import Identity
from finqa_plugins.precision import auto_dtype

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
GPT2_PROJECTIONS = ("c_attn", "c_proj", "c_fc")
_POSITIONS = ("wpe", "embed_positions", "position_embeddings")
"""Names that transformers gives to the embeddings of absolute positions."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def compute_dtype(config: TorchLearnerConfig, device: torch.device, model: Architecture | None) -> torch.dtype:
    """Data type in which the forward pass computes."""
    if config.dtype == "auto":
        return auto_dtype(device, 0 if model is None else model.parameters)
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32


def publish_dtype(config: TorchLearnerConfig, computation: torch.dtype) -> torch.dtype:
    """Precision of the models that full training publishes.

    bfloat16 halves the bytes of each sync, and the learner's own forward pass rounds weights alike (autocast).
    """
    chosen = {"auto": computation, "bfloat16": torch.bfloat16, "float32": torch.float32}
    return chosen[config.publish_dtype]


def uses_tf32(config: TorchLearnerConfig, device: torch.device, computation: torch.dtype) -> bool:
    """Whether float32 matrix products may round their inputs to TF32 (10 bits of mantissa); on CUDA only.

    Values in bfloat16 are exact in TF32. With `auto`, a computation in float32 stays exact.
    """
    chosen = {"auto": computation == torch.bfloat16, "on": True, "off": False}
    return device.type == "cuda" and chosen[config.tf32]


def load_base(model: str, *, dtype: torch.dtype, device: torch.device) -> Any:
    """The base model in `dtype`, without dropout of its own: the sampler has none either.

    Raises:
        ConfigError: The folder is incomplete, the hub has no such model, or its head is not a plain projection.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    check_folder(model)
    transformers_logging.disable_progress_bar()
    try:
        base = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="sdpa")
    except Exception as error:  # transformers, safetensors and the hub client raise many kinds, some of them bare
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"Model {model!r} cannot be loaded: {reason}", remedy="--model FOLDER_OR_HUB_ID") from error
    for option, neutral in LOGIT_RESCALING.items():
        if getattr(base.config, option, neutral) not in (None, neutral):
            raise ConfigError(
                f"Model {model!r} rescales its logits ({option}), which learner 'torch' does not support.",
                remedy="choose a model without it, such as a Qwen3",
            )
    for module in base.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    return base.to(device)


def check_folder(model: str) -> None:
    """Checks that a local model folder is complete; a hub id is not checked.

    Raises:
        ConfigError: Configuration, weights or tokenizer are missing.
    """
    folder = Path(model)
    if not folder.is_dir():
        return
    lacking = []
    if not (folder / "config.json").is_file():
        lacking.append("configuration (config.json)")
    if not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        lacking.append("weights (*.safetensors)")
    if not any((folder / name).is_file() for name in _TOKENIZER):
        lacking.append("tokenizer (tokenizer.json)")
    if lacking:
        raise ConfigError(
            f"Model folder {model!r} is incomplete; it lacks: {', '.join(lacking)}.",
            remedy="copy the missing files into the folder, or name another with --model",
        )


def add_adapter(base: Any, context: LearnerContext, targets: tuple[str, ...]) -> Any:
    """The base model wrapped in a new LoRA adapter whose output is 0, with seeded initialisation.

    Raises:
        ConfigError: No linear layer has one of the target names.
    """
    from peft import LoraConfig, get_peft_model

    from finqa_plugins.learners.torch.adapter_layers import round_once

    layers = [(name.rpartition(".")[2], part) for name, part in base.named_modules() if isinstance(part, ADAPTABLE)]
    linear = sorted({name for name, _ in layers})
    if unknown := [target for target in targets if target not in linear]:
        known = ",".join(target for target in (*PROJECTIONS, *GPT2_PROJECTIONS) if target in linear)
        raise ConfigError(
            f"Model {context.model!r} has no linear layer named {', '.join(unknown)}; it has {', '.join(linear)}.",
            remedy=f"--lora-target-modules {known}" if known else "--lora-rank 0",
        )
    options = LoraConfig(
        r=context.lora_rank,
        lora_alpha=context.lora_alpha,
        lora_dropout=context.lora_dropout,
        target_modules=list(targets),
        fan_in_fan_out=any(isinstance(part, Conv1D) for name, part in layers if name in targets),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # if layers of both kinds are adapted, PEFT records for each how it reads the weight
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        torch.manual_seed(context.seed)
        adapted = get_peft_model(base, options)
    adapted.peft_config["default"].base_model_name_or_path = context.model
    round_once(adapted)
    return adapted


def fingerprint(base: Any) -> str:
    """Identifies base models: sha256 over each parameter's name, shape and first 32 values, rounded to bfloat16.

    Rounding makes it the same whether the model was loaded in float32 or bfloat16.
    """
    digest = hashlib.sha256()
    heads = []
    for name, parameter in sorted(base.named_parameters()):
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        heads.append(parameter.detach().flatten()[:32].to(torch.bfloat16))
    digest.update(torch.cat(heads).float().cpu().numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A model that is ready to train.

    Attributes:
        device: Device of the computation.
        dtype: Data type of the computation.
        identity: What must be equal in a saved state.
        model: The model, with the adapter if it has one.
        causal: The causal language model in it.
        forward: Its forward pass.
        packs: Whether it uses packed rows.
        width: Size of its hidden states.
        wide: Whether its logits are float32 although it computes in 16 bits.
        positions: Longest sequence that it has position embeddings for; None if it has none, as with RoPE.
        recomputation: Gradient checkpointing of the model.
        tokens_at_once: Most tokens of a forward pass; 0: no limit of the device's own.
    """

    device: torch.device
    dtype: torch.dtype
    identity: Identity
    model: Any
    causal: Any
    forward: PolicyForward
    packs: bool
    width: int
    wide: bool
    positions: int | None
    recomputation: Recomputation
    tokens_at_once: int

    def check_lengths(self, samples: Sequence[Sample]) -> None:
        """Raise DataError for a sample that is longer than the model has positions for."""
        longest = max((len(sample.token_ids) for sample in samples), default=0)
        if self.positions is not None and longest > self.positions:
            raise DataError(
                f"An episode of {longest} tokens is longer than the {self.positions} positions that the model has.",
                remedy=f"choose a model with a context of {longest} tokens or more, as set in its config.json",
            )


def build_model(config: TorchLearnerConfig, context: LearnerContext, processes: SingleProcess) -> TrainedModel:
    """Loads the model to train, adapts it and shards it.

    Raises:
        ConfigError: The model cannot be loaded or lacks a layer that is to be adapted, or there is no such device.
    """
    device = processes.device(config, context.devices)
    architecture = known_architecture(context.model)
    dtype = compute_dtype(config, device, architecture)
    if uses_tf32(config, device, dtype):
        torch.set_float32_matmul_precision("high")  # a setting of the whole process
    adapts = context.lora_rank > 0
    targets = tuple(dict.fromkeys(context.lora_target_modules)) or PROJECTIONS
    loading = _loading_device(device, processes)
    with processes.in_turn():  # so that only one process of a machine has the full weights at a time
        base = load_base(context.model, dtype=dtype if adapts else torch.float32, device=loading)
        identity = Identity(
            base=fingerprint(base),
            lora_rank=context.lora_rank,
            lora_alpha=context.lora_alpha if adapts else 0,
            lora_target_modules=tuple(sorted(targets)) if adapts else (),
        )
        model = add_adapter(base, context, targets) if adapts else base
        width = int(base.get_output_embeddings().weight.shape[1])
        found = takes_packed_rows(base, config.packing) if processes.leads else False
        alone = processes.size == 1
        recomputation = Recomputation(base, architecture, context, device=device, dtype=dtype, alone=alone)
        wide = widens_head(config, base, dtype)
        forward = _forward(base, device, processes, wide=wide)
    if packs := processes.gather(found)[0]:  # one result for all processes, which must cut batches in the same way
        attend_within_segments(base)
    return TrainedModel(
        device=device,
        dtype=dtype,
        identity=identity,
        model=model,
        causal=base,
        forward=forward,
        packs=packs,
        width=width,
        wide=wide,
        positions=_learned_positions(base),
        recomputation=recomputation,
        tokens_at_once=tokens_at_once(device, architecture),
    )


def _learned_positions(model: Any) -> int | None:
    for name, part in model.named_modules():
        if isinstance(part, nn.Embedding) and name.rpartition(".")[2] in _POSITIONS:
            return min(part.num_embeddings, int(model.config.max_position_embeddings))
    return None


def frozen_base(trained: TrainedModel, context: LearnerContext, processes: SingleProcess) -> PolicyForward:
    """A copy of the base model that is not trained, with the same layout."""
    loading = _loading_device(trained.device, processes)
    with processes.in_turn():
        base = load_base(context.model, dtype=trained.dtype, device=loading)
        if trained.packs:
            attend_within_segments(base)
        base.requires_grad_(False).eval()
        return _forward(base, trained.device, processes, wide=trained.wide)


def _loading_device(device: torch.device, processes: SingleProcess) -> torch.device:
    # sharded weights are loaded on the CPU: the device may only have room for its shards
    return device if processes.mesh(device) is None else torch.device("cpu")


def _forward(causal: Any, device: torch.device, processes: SingleProcess, *, wide: bool = False) -> PolicyForward:
    forward = PolicyForward(causal, wide=wide)
    if (mesh := processes.mesh(device)) is not None:
        with on_device(device):
            shard(forward, mesh)
    return forward
