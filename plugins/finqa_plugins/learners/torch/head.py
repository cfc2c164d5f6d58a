"""Logits in float32 from a head that computes in 16 bits.

A logit near 20 is rounded to 0.06 in bfloat16, so that a head which writes its output in it is the largest part of the
difference between two computations of one policy. Products of two 16-bit numbers are exact in float32: only the output
has to be wider. MiniMax-M1, arXiv 2506.13585, section 3.2; ScaleRL, arXiv 2510.13786.

On CUDA the matrix product takes 16-bit inputs and writes float32, at no cost. Elsewhere head and states are copied to
float32 for the product: 4 bytes for each weight of the head, as long as it takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from finqa_cli.errors import ConfigError
from finqa_plugins.learners.torch.config import TorchLearnerConfig


def widens_head(config: TorchLearnerConfig, causal: Any, dtype: torch.dtype) -> bool:
    """Whether logits are to be float32 although the model computes in another dtype.

    Raises:
        ConfigError: It is asked for, and the head is no plain linear layer, because an adapter is on it.
    """
    if dtype == torch.float32 or config.head_dtype == "model":
        return False
    plain = type(causal.get_output_embeddings()) is nn.Linear
    if not plain and config.head_dtype == "float32":
        raise ConfigError(
            "learner.options.head_dtype=float32 needs a head without an adapter, but lora.target_modules has it.",
            remedy="--set learner.options.head_dtype=model",
        )
    return plain


def wide_logits(head: nn.Linear, states: torch.Tensor) -> torch.Tensor:
    """[N, V] float32 logits of states [N, H], both rounded to the dtype of the computation before the product."""
    device = states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    if dtype == torch.float32:
        return head(states)  # type: ignore[no-any-return]
    logits: torch.Tensor = _WideProduct.apply(states.to(dtype), head.weight)  # type: ignore[no-untyped-call]
    return logits if head.bias is None else logits + head.bias.float()


class _WideProduct(torch.autograd.Function):
    """states @ weight^T with a float32 result.

    The gradient of the logits is rounded to the dtype of the states, as everywhere below the head.
    """

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(states, weight)
        return _product(states, weight.to(states.dtype).t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        states, weight = ctx.saved_tensors
        narrow = gradient.to(states.dtype)
        of_states = of_weight = None
        if ctx.needs_input_grad[0]:
            of_states = _product(narrow, weight.to(states.dtype)).to(states.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = _product(narrow.t(), states).to(weight.dtype)
        return of_states, of_weight


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The matrix product of two tensors of one 16-bit dtype, in float32."""
    with torch.autocast(left.device.type, enabled=False):
        if left.device.type == "cuda":
            return torch.mm(left, right, out_dtype=torch.float32)
        return torch.mm(left.float(), right.float())
