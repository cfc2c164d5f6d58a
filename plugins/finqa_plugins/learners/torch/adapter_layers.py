"""LoRA layers of PEFT that add the adapter to a 16-bit layer before its result is rounded; see `linear_plus`."""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora.layer import Linear

from finqa_plugins.precision import linear_plus


class RoundedOnce(Linear):  # type: ignore[misc]  # PEFT has no types
    """A LoRA layer with one adapter on a linear layer whose weights have 16 bits."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute as PEFT does, except for the rounding of the sum."""
        if self.disable_adapters or self.merged or len(self.active_adapters) != 1:
            return super().forward(x, *args, **kwargs)  # type: ignore[no-any-return]
        name, base = self.active_adapters[0], self.base_layer
        down, up = self.lora_A[name], self.lora_B[name]
        added = up(down(self.lora_dropout[name](x.to(down.weight.dtype)))) * self.scaling[name]
        weight = base.weight if self.fan_in_fan_out else base.weight.t()
        return linear_plus(x, weight, base.bias, added)


def round_once(model: Any) -> None:
    """Make the plain LoRA layers of a model add before they round, where the model's weights have 16 bits.

    Layers of other kinds (DoRA, embeddings) stay those of PEFT, and so do layers in float32.
    """
    for layer in model.modules():
        if type(layer) is Linear and layer.base_layer.weight.dtype == torch.bfloat16 and not layer.lora_variant:
            layer.__class__ = RoundedOnce
