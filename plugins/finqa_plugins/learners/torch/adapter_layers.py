"""LoRA layers of PEFT as one operation, which keeps less, makes fewer copies, and rounds the sum once."""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora.layer import Linear
from torch import nn
from torch.autograd.function import once_differentiable
from transformers.pytorch_utils import Conv1D

from finqa_plugins.precision import low_rank_sum

_DTYPES = (torch.float32, torch.bfloat16)


class AdaptedLinear(Linear):  # type: ignore[misc]  # PEFT has no types
    """A LoRA layer with one adapter on a plain linear layer that is not trained."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The sum that PEFT computes, with matrix products in the dtype of the layer's weight.

        PEFT computes the term in the adapter's float32: a float32 copy of `x` for each layer, and three tensors of the
        result's size.
        """
        if self.disable_adapters or self.merged or len(self.active_adapters) != 1 or args or kwargs:
            return super().forward(x, *args, **kwargs)  # type: ignore[no-any-return]
        name, base = self.active_adapters[0], self.base_layer
        dropout = self.lora_dropout[name]
        drops = isinstance(dropout, nn.Dropout) and dropout.p > 0 and dropout.training
        rows = x.flatten(0, -2)
        found: torch.Tensor = _LowRankSum.apply(  # type: ignore[no-untyped-call]
            rows,
            dropout(rows) if drops else None,
            base.weight if isinstance(base, Conv1D) else base.weight.t(),
            base.bias,
            self.lora_A[name].weight,
            self.lora_B[name].weight,
            self.scaling[name],
        )
        return found.view(*x.shape[:-1], found.shape[-1])  # here: a function's own view cannot be changed in place


class _LowRankSum(torch.autograd.Function):
    """x @ W + scale (d @ A^T) @ B^T + bias, where d is x, or x after dropout; W and the bias are frozen.

    Hu et al., 2021. With G the gradient of the result and H = G @ (scale B): dx = G @ W^T + H @ A, or without the
    second term where there is dropout, whose d gets it; dA = H^T @ d; dB = scale G^T @ (d @ A^T). Only x, d and
    d @ A^T are kept. In 16 bits the products have operands in 16 bits, and are accumulated in float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        dropped: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        hidden = (x if dropped is None else dropped) @ down.to(x.dtype).t()
        ctx.save_for_backward(dropped, x, weight, down, up, hidden)
        ctx.scale = scale
        return low_rank_sum(x, weight, bias, hidden, (scale * up).to(x.dtype).t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        dropped, x, weight, down, up, hidden = ctx.saved_tensors
        low = gradient @ (ctx.scale * up).to(x.dtype)
        of_x = of_dropped = None
        if ctx.needs_input_grad[0]:
            narrow = down.to(x.dtype)
            if dropped is None:
                of_x = low_rank_sum(gradient, weight.t(), None, low, narrow)
            else:
                of_x, of_dropped = gradient @ weight.t(), low @ narrow
        of_down = _accumulated(low, x if dropped is None else dropped).to(down.dtype)
        of_up = (ctx.scale * _accumulated(gradient, hidden)).to(up.dtype)
        return of_x, of_dropped, None, None, of_down, of_up, None


def _accumulated(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left^T @ right: the gradient of a factor, summed over tokens; on CUDA it is not rounded to 16 bits."""
    if left.device.type == "cuda" and left.dtype != torch.float32:
        return torch.mm(left.t(), right, out_dtype=torch.float32)
    return left.t() @ right


def fuse_adapters(model: Any) -> None:
    """Make the plain LoRA layers of a model one operation each.

    Layers of other kinds (DoRA, embeddings, quantized weights, biases of the adapter) stay those of PEFT.
    """
    for layer in model.modules():
        if type(layer) is not Linear or layer.lora_variant:
            continue
        base, biases = layer.base_layer, [part.bias for part in layer.lora_B.values() if part.bias is not None]
        if not biases and type(base) in (nn.Linear, Conv1D) and base.weight.dtype in _DTYPES:
            layer.__class__ = AdaptedLinear
