"""Structure of a model, read from its configuration without its weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayer:
    """All linear layers of a model that share a name and a shape.

    Attributes:
        name: The last part of their names, as used in LoRA targets.
        inputs: Input width.
        outputs: Output width.
        count: How many there are.
        kind: Their class, such as `Linear` or GPT-2's `Conv1D`.
    """

    name: str
    inputs: int
    outputs: int
    count: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A causal language model, as built without weights.

    Attributes:
        family: The `model_type` of its configuration, such as `qwen3`.
        class_name: The class that is built of it.
        dtype: What its weights are stored in, or "" if its configuration does not name it.
        layers: Blocks.
        hidden: Width of the residual stream.
        heads: Attention heads of a block.
        key_value_heads: Heads that keys and values are kept for.
        head_dim: Width of a head.
        vocabulary: Rows of the embedding.
        context: Positions; 0 where nothing limits them.
        tied: Input and output embedding are one matrix.
        parameters: Weights in all, each once.
        kv_values_per_token: Numbers that the cache keeps for each token, over all layers.
        linear: Its linear layers, output head left out, in order of appearance.
        lora_targets: Names to adapt; empty where it has no linear layer besides its head.
        warnings: What a user should know before choosing it.
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
    warnings: tuple[str, ...] = ()

    def adapter_parameters(self, targets: tuple[str, ...], rank: int) -> int:
        """Weights of a LoRA adapter: r (in + out) for each matrix (Hu et al., arXiv 2106.09685, section 4.2)."""
        return rank * sum(part.count * (part.inputs + part.outputs) for part in self.linear if part.name in targets)
