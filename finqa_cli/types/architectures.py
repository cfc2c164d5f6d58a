"""Structure of a model, read from its configuration without its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Usual names of the projections of attention and MLP."""


def default_targets(names: Sequence[str]) -> tuple[str, ...]:
    """Return the layers that LoRA adapts by default: the usual projections if a model has all, else all its layers.

    Args:
        names: Names of the linear layers of the text decoder, without those that choose experts.
    """
    return PROJECTIONS if set(PROJECTIONS) <= set(names) else tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayer:
    """All linear layers of a model that share a name and a shape.

    Attributes:
        name: The last part of their names, as used in LoRA targets.
        inputs: Input width.
        outputs: Output width.
        count: Number of these layers.
        kind: Their class, such as `Linear` or GPT-2's `Conv1D`.
    """

    name: str
    inputs: int
    outputs: int
    count: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Structure of a causal language model.

    Attributes:
        family: The `model_type` of its configuration, such as `qwen3`.
        class_name: Class of transformers that implements it.
        dtype: Type in which its weights are stored; empty if its configuration does not name it.
        layers: Number of transformer blocks.
        hidden: Width of the residual stream.
        heads: Attention heads of a block.
        key_value_heads: Key-value heads of a block.
        head_dim: Width of a head.
        vocabulary: Rows of the embedding.
        context: Longest sequence in tokens; 0: no limit.
        tied: Input and output embedding are one matrix.
        parameters: Number of all weights; a shared matrix counts once.
        kv_values_per_token: Numbers that the key-value cache keeps for each token, over all layers.
        linear: Its linear layers without the output head, in order of appearance.
        lora_targets: Names of the layers that are adapted by default; empty if it has no linear layer besides its head.
        layer_kinds: Kinds of its blocks, such as `full_attention`; empty: all attend to all earlier tokens.
        warnings: What a user should know before choosing it, one sentence each.
    """

    family: str
    class_name: str
    dtype: str
    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    head_dim: int
    vocabulary: int
    context: int
    tied: bool
    parameters: int
    kv_values_per_token: int
    linear: tuple[LinearLayer, ...]
    lora_targets: tuple[str, ...]
    layer_kinds: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def adapter_parameters(self, targets: tuple[str, ...], rank: int) -> int:
        """Weights of a LoRA adapter: r (in + out) for each matrix (Hu et al., arXiv 2106.09685, section 4.2)."""
        return rank * sum(part.count * (part.inputs + part.outputs) for part in self.linear if part.name in targets)
