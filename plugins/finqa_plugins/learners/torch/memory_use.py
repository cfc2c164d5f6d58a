"""What bounds the memory and the duration of a forward pass: tokens of a micro-batch, and recomputation of activations.

With `train.gradient_checkpointing` unset, activations are recomputed in the backward pass only for micro-batches whose
activations would not fit into the memory that is free. Recomputation gives the same bits, so the choice may differ
between a run and its continuation.
"""

from __future__ import annotations

from typing import Any

import torch

from finqa_cli.contracts import LearnerContext
from finqa_cli.errors import FinqaError
from finqa_cli.placement.host_resources import SMALL_MODEL, available_memory
from finqa_cli.placement.memory_formulas import BF16, FP32, HEAD_COPIES, LOGITS_AT_ONCE, activations
from finqa_cli.types import Architecture
from finqa_plugins.learners.torch.inspection import inspect
from finqa_plugins.model_facts import foreign_code

CPU_TOKENS = 2048
"""Most tokens of a forward pass on a CPU, for models that are not small. Longer passes are not faster there, and a stop
is only seen between two of them."""

SHARE = 0.5
"""Share of the free memory that activations may take. The rest is for gradients and moments, which the first step makes
after this choice, and for an engine beside the learner."""


def known_architecture(model: str) -> Architecture | None:
    """The architecture of a model folder or hub id; None if it cannot be found out, which loading it then reports."""
    try:
        return inspect(model)
    except FinqaError:
        return None


def tokens_at_once(device: torch.device, architecture: Architecture | None) -> int:
    """Most tokens of a forward pass; 0: no limit of the device's own."""
    small = architecture is not None and architecture.parameters < SMALL_MODEL
    return CPU_TOKENS if device.type == "cpu" and not small else 0


class Recomputation:
    """Turns gradient checkpointing of a model on and off."""

    def __init__(
        self,
        causal: Any,
        architecture: Architecture | None,
        context: LearnerContext,
        *,
        device: torch.device,
        dtype: torch.dtype,
        alone: bool,
    ) -> None:
        """Sets the state for a model.

        Args:
            causal: The causal language model.
            architecture: Its architecture; None if it is not known.
            context: Context of the learner.
            device: Device of the computation.
            dtype: Data type of the computation.
            alone: There is one process. Several gather sharded weights together in each pass, so that all must make
                the same choice: they recompute.
        """
        self._causal = causal
        self._architecture = architecture
        self._rank = context.lora_rank
        self._device = device
        self._width = dtype.itemsize / BF16
        wanted = context.gradient_checkpointing
        supported = getattr(causal, "supports_gradient_checkpointing", True)
        self._open = supported and wanted is None and alone and architecture is not None and _is_dense(architecture)
        self._on = False
        if not self._open:
            self._set(bool(wanted) or (wanted is None and supported))

    def prepare(self, tokens: int) -> None:
        """Choose for a micro-batch of this many tokens, with padding."""
        if self._open:
            free = self._free()
            self._set(free is None or self.need(tokens) > SHARE * free)

    def need(self, tokens: int) -> float:
        """Bytes of the activations and logits of a micro-batch without recomputation."""
        assert self._architecture is not None
        kept = activations(self._architecture, tokens, rank=self._rank, checkpointing=False)
        logits = HEAD_COPIES * FP32 * min(tokens * self._architecture.vocabulary, LOGITS_AT_ONCE)
        return self._width * kept + logits

    def _free(self) -> float | None:
        if self._device.type == "cpu":
            return available_memory()
        free, _ = torch.cuda.mem_get_info(self._device)
        cached = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return float(free + cached)

    def _set(self, on: bool) -> None:
        if on == self._on:
            return
        self._on = on
        if on:
            with foreign_code(
                f"Model {self._causal.name_or_path!r} has no gradient checkpointing",
                remedy="--disable-gradient-checkpointing",
            ):
                self._causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            self._causal.gradient_checkpointing_disable()


def _is_dense(model: Architecture) -> bool:
    """Whether most weights are in linear layers, by which activations are counted; not so with fused experts."""
    inner = sum(part.count * part.inputs * part.outputs for part in model.linear)
    outer = model.vocabulary * model.hidden * (1 if model.tied else 2)
    return inner >= 0.5 * (model.parameters - outer)
