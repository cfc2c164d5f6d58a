"""Calls a function before each decoder layer, so that a long micro-batch can be left in the middle.

On a CPU a micro-batch of a real model takes many seconds; a layer of it takes a fraction of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer


def before_each_layer(model: nn.Module, call: Callable[[], None]) -> None:
    """Calls `call` before each layer is computed, in the forward pass, in its repetition and in the backward pass.

    Neither numbers nor the graph of the computation change. If `call` raises, so does the pass.
    """

    def begin(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        call()
        states = arguments[0] if arguments else None
        if isinstance(states, torch.Tensor) and states.requires_grad:
            states.register_hook(lambda gradient: call())  # type: ignore[no-untyped-call]

    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.register_forward_pre_hook(begin)
