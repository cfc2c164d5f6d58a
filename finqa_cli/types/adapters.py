"""What an adapter in PEFT's format is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FEATURES = (
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
)
"""Options of `peft.LoraConfig` that change the arithmetic beyond `W + scale * B A`. `fan_in_fan_out` does not: PEFT
goes by the class of each layer, not by this option."""


def special_features(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what an adapter_config.json names beyond plain LoRA: its kind if that is another, or its options."""
    kind = str(config.get("peft_type"))
    if kind != "LORA":
        return (kind,)
    bias = ("bias",) if config.get("bias", "none") != "none" else ()
    return (*(name for name in FEATURES if config.get(name)), *bias)
