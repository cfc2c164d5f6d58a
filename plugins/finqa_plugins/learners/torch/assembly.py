"""The model of a learner, put together: loaded, adapted, packed and cut over the processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from finqa_cli.contracts import LearnerContext
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.distributed.process_group import Alone, on_device
from finqa_plugins.learners.torch.distributed.sharding import PolicyForward, shard
from finqa_plugins.learners.torch.head import widens_head
from finqa_plugins.learners.torch.packed_attention import attend_within_segments, takes_packed_rows
from finqa_plugins.learners.torch.state import Identity
from finqa_plugins.learners.torch.trained_model import (
    PROJECTIONS,
    add_adapter,
    compute_dtype,
    fingerprint,
    load_base,
    uses_tf32,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A model that is ready to train.

    Attributes:
        device: Where it computes.
        dtype: What it computes in.
        identity: What a saved state must agree with.
        model: With the adapter, if it has one.
        causal: The causal language model in it.
        forward: Its forward pass.
        packs: It takes packed rows.
        width: Of its hidden states.
        wide: Its logits are float32, whatever it computes in.
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


def assemble(config: TorchLearnerConfig, context: LearnerContext, processes: Alone) -> Assembly:
    """The model that is trained.

    Raises:
        ConfigError: The model cannot be loaded or lacks a layer that is to be adapted, or there is no such device.
    """
    device = processes.device(config, context.devices)
    dtype = compute_dtype(config, device)
    if uses_tf32(config, device, dtype):
        torch.set_float32_matmul_precision("high")  # of the whole process
    adapts = context.lora_rank > 0
    targets = tuple(dict.fromkeys(context.lora_target_modules)) or PROJECTIONS
    loading = _loading_device(device, processes)
    with processes.in_turn():  # so that a machine never holds the whole weights of more than one process
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
        if context.gradient_checkpointing:
            base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        wide = widens_head(config, base, dtype)
        forward = _forward(base, device, processes, wide=wide)
    if packs := processes.gathered(found)[0]:  # what one found goes for all: they must cut batches alike
        attend_within_segments(base)
    return Assembly(
        device=device,
        dtype=dtype,
        identity=identity,
        model=model,
        causal=base,
        forward=forward,
        packs=packs,
        width=width,
        wide=wide,
    )


def frozen_base(assembly: Assembly, context: LearnerContext, processes: Alone) -> PolicyForward:
    """A copy of the base model that is not trained, with the same layout."""
    loading = _loading_device(assembly.device, processes)
    with processes.in_turn():
        base = load_base(context.model, dtype=assembly.dtype, device=loading)
        if assembly.packs:
            attend_within_segments(base)
        base.requires_grad_(False).eval()
        return _forward(base, assembly.device, processes, wide=assembly.wide)


def _loading_device(device: torch.device, processes: Alone) -> torch.device:
    # what is to be cut is loaded beside the device, which may hold no more than its pieces
    return device if processes.mesh(device) is None else torch.device("cpu")


def _forward(causal: Any, device: torch.device, processes: Alone, *, wide: bool = False) -> PolicyForward:
    forward = PolicyForward(causal, wide=wide)
    if (mesh := processes.mesh(device)) is not None:
        with on_device(device):
            shard(forward, mesh)
    return forward
