"""How much memory a server needs on each of its devices, computed from the model's folder."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from finqa_plugins.engines._http.served_adapters import model_shapes

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
VLLM_SEQUENCES = 256
"""vLLM's usual --max-num-seqs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes on each device, activations left out.

    Attributes:
        weights: Of the model.
        adapters: Of all adapters that are served at once.
        context: KV cache of one sequence of full length: less than this does not start.
        length: That length in tokens.
        sequences: Sequences of full length that would be decoded together at most.
    """

    weights: int
    adapters: int
    context: int
    length: int
    sequences: int

    @property
    def least(self) -> int:
        """What it takes to start."""
        return self.weights + self.adapters + self.context

    def describe(self) -> str:
        """A sentence with the sum and its parts."""
        together = _gib(self.context * self.sequences)
        return (
            f"It needs at least {_gib(self.least)} on each device, besides activations: {_gib(self.weights)} of "
            f"weights, {_gib(self.adapters)} of adapters and {_gib(self.context)} of KV cache for one sequence of "
            f"{self.length} tokens ({together} for {self.sequences} at once; with less, some wait)."
        )


def need(
    model: Path,
    *,
    dtype: str,
    length: int | None,
    sequences: int | None,
    tensor_parallel_size: int,
    lora_rank: int,
    loras: int,
) -> Need | None:
    """The need of one device; None when the folder does not tell (a hub id, an unknown architecture).

    Args:
        model: Folder with config.json and safetensors.
        dtype: What is computed in.
        length: Longest sequence in tokens; None: the model's own limit.
        sequences: Sequences decoded together; None: vLLM's default.
        tensor_parallel_size: Devices that share the model.
        lora_rank: Rank that the server reserves room for; 0: no adapters.
        loras: Adapters at once.
    """
    try:
        facts = json.loads((model / "config.json").read_text(encoding="utf-8"))
        facts = facts.get("text_config") or facts
        heads = int(facts.get("num_key_value_heads") or facts["num_attention_heads"])
        width = int(facts.get("head_dim") or facts["hidden_size"] // facts["num_attention_heads"])
        layers = int(facts["num_hidden_layers"])
        length = length or int(facts["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None
    shapes = model_shapes(str(model))
    if not shapes:
        return None
    size = DTYPE_BYTES[dtype]
    low_rank = sum(
        lora_rank * sum(shape) for name, shape in shapes.items() if name.endswith("_proj.weight") and len(shape) == 2
    )
    return Need(
        weights=size * sum(math.prod(shape) for shape in shapes.values()) // tensor_parallel_size,
        adapters=size * low_rank * loras // tensor_parallel_size,
        # a key head is on one device at least
        context=2 * layers * -(-heads // tensor_parallel_size) * width * size * length,
        length=length,
        sequences=sequences or VLLM_SEQUENCES,
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
