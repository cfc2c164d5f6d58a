"""The model of a learner: loaded, adapted, packed and sharded over the processes."""

from __future__ import annotations

import hashlib
import re
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
from finqa_cli.local_models import local_model
from finqa_cli.types import Architecture, Sample
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.distributed.process_group import SingleProcess, on_device
from finqa_plugins.learners.torch.distributed.sharding import PolicyForward, shard
from finqa_plugins.learners.torch.forward import widens_head
from finqa_plugins.learners.torch.memory_use import Recomputation, known_architecture, tokens_at_once
from finqa_plugins.learners.torch.packed_rows import attend_within_segments, takes_packed_rows
from finqa_plugins.learners.torch.state import Identity
from finqa_plugins.model_facts import (
    ADAPTABLE,
    ModelFacts,
    check_trainable,
    decoder_layers,
    decoder_prefix,
    foreign_code,
    number,
    read_facts,
    target_names,
    text_config,
    text_decoder,
)
from finqa_plugins.precision import auto_dtype

COPY = "copy the model again, or --model FOLDER_OR_HUB_ID"
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
        ConfigError: The folder is incomplete, the hub has no such model, or its own code fails.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    check_folder(model)
    transformers_logging.disable_progress_bar()
    with foreign_code(f"Model {model!r} cannot be loaded", COPY):
        folder = local_model(model)
        config = AutoConfig.from_pretrained(folder)
        attention = read_facts(config).attention
        base = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype, attn_implementation=attention)
    for module in base.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):  # a layer of that name in some models
            module.attention_dropout = 0.0
    return base.to(device)


def check_facts(model: str, facts: ModelFacts) -> None:
    """Checks what a configuration says about a model.

    Raises:
        ConfigError: It scales or caps its logits.
    """
    if facts.rescales:
        raise ConfigError(
            f"Model {model!r} rescales its logits ({facts.rescales}), which learner 'torch' does not support.",
            remedy="choose a model without it, such as a Qwen3",
        )


def check_context(context: LearnerContext) -> None:
    """Checks, by its configuration alone, that a model can be trained with an adapter or in full.

    Raises:
        ConfigError: It cannot be built, rescales its logits, lacks a layer that is to be adapted, or is quantized.
    """
    from transformers import AutoConfig

    from finqa_plugins.learners.torch.meta_model import build_without_weights

    check_folder(context.model)
    with foreign_code(f"Model {context.model!r} cannot be loaded", COPY):
        config = AutoConfig.from_pretrained(local_model(context.model))
    facts = read_facts(config)
    check_facts(context.model, facts)
    if facts.quantization:  # most methods have kernels without a backward pass, or layers that PEFT adapts otherwise
        raise ConfigError(
            f"The weights of {context.model!r} are quantized ({facts.quantization}), which learner 'torch' does not "
            "train, also not with an adapter.",
            remedy="--model with the checkpoint of the same model in bfloat16, from which it was quantized",
        )
    if context.lora_rank:
        choose_targets(build_without_weights(config, context.model), context)


def choose_targets(base: Any, context: LearnerContext) -> tuple[str, ...]:
    """The names of the layers to adapt: those of the context, or the model's own.

    PEFT adapts the fused experts of some families in place of layers that it names alike (`target_parameters`). Engines
    do not serve such adapters, so these layers are not chosen.

    Raises:
        ConfigError: The text decoder has no linear layer with one of the names, or it is one of fused experts.
    """
    own = target_names(base)
    wanted = tuple(dict.fromkeys(context.lora_target_modules))
    layers = {name.rpartition(".")[2] for name in decoder_layers(base)}
    head = next((name.rpartition(".")[2] for name, part in base.named_modules() if _is_head(base, part)), "")
    fused = {name for name in {*wanted, *own} if _adapts_experts(base, name)}
    usable = tuple(name for name in own if name not in fused)
    remedy = f"--lora-target-modules {','.join(usable)}" if usable else "--lora-rank 0"
    if unknown := [name for name in wanted if name not in layers | {head}]:
        raise ConfigError(
            f"Model {context.model!r} has no linear layer named {', '.join(unknown)} in its text decoder; it has "
            f"{', '.join(sorted(layers | {head} - {''}))}.",
            remedy=remedy,
        )
    if chosen := [name for name in wanted if name in fused]:
        raise ConfigError(
            f"{', '.join(chosen)} of model {context.model!r} would be adapted in its fused experts, and no engine "
            "serves such an adapter.",
            remedy=remedy,
        )
    return wanted or usable


def _is_head(base: Any, part: nn.Module) -> bool:
    return part is base.get_output_embeddings() and isinstance(part, ADAPTABLE)


def _adapts_experts(base: Any, target: str) -> bool:
    """Whether PEFT would adapt parameters of fused experts in place of the layers with this name."""
    from peft import LoraConfig

    try:
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    except ImportError:  # not part of PEFT's public interface
        return False
    options = LoraConfig(target_modules=[target])
    try:
        convert_peft_config_for_transformers(options, base, None)
    except ValueError:  # it is fused with others, which would have to be named too
        return True
    return target not in (options.target_modules or ())


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

    from finqa_plugins.learners.torch.adapter_layers import fuse_adapters

    layers = [(name.rpartition(".")[2], part) for name, part in decoder_layers(base).items()]
    options = LoraConfig(
        r=context.lora_rank,
        lora_alpha=context.lora_alpha,
        lora_dropout=context.lora_dropout,
        target_modules=list(targets),
        exclude_modules=_outside(base, targets),
        fan_in_fan_out=any(isinstance(part, Conv1D) for name, part in layers if name in targets),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # if layers of both kinds are adapted, PEFT records for each how it reads the weight
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        torch.manual_seed(context.seed)
        with foreign_code(
            f"PEFT cannot adapt {', '.join(targets)} of model {context.model!r}",
            remedy="name other layers with --lora-target-modules, or --lora-rank 0",
        ):
            adapted = get_peft_model(base, options)
    adapted.peft_config["default"].base_model_name_or_path = context.model
    fuse_adapters(adapted)
    return adapted


def _outside(base: Any, targets: Sequence[str]) -> str | None:
    """A pattern of the layers outside the text decoder, such as those of a vision tower; None if none is a target."""
    inside = decoder_layers(base)
    parts = {name: part for name, part in base.named_modules() if name.rpartition(".")[2] in targets}
    others = [name for name, part in parts.items() if name not in inside and not _is_head(base, part)]
    if not others:
        return None
    kept = [decoder_prefix(base), *(name for name, part in parts.items() if _is_head(base, part))]
    return f"(?!{'|'.join(map(re.escape, kept))}).*"


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
    loading = _loading_device(device, processes)
    with processes.in_turn():  # so that only one process of a machine has the full weights at a time
        base = load_base(context.model, dtype=dtype if adapts else torch.float32, device=loading)
        check_facts(context.model, read_facts(base.config))
        targets = choose_targets(base, context) if adapts else ()
        if processes.leads:
            check_trainable(base, lambda ids: text_decoder(base)(input_ids=ids, use_cache=False).last_hidden_state)
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
    limit = number(text_config(model.config), "max_position_embeddings")
    for name, part in text_decoder(model).named_modules():
        if isinstance(part, nn.Embedding) and name.rpartition(".")[2] in _POSITIONS:
            return min(part.num_embeddings, limit or part.num_embeddings)
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
