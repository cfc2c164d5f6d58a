"""What a model needs of a GPU: formulas over its architecture, in bytes.

bfloat16 takes 2 bytes a number, float32 4. On GPUs engine and learner hold frozen weights in bfloat16; what is trained
is float32 with float32 gradients and AdamW's two averages: 4 + 4 + 8 = 16 bytes a weight (Rajbhandari et al., ZeRO,
arXiv 1910.02054, section 3.1, counts the same 16 in mixed precision).
"""

from __future__ import annotations

from dataclasses import dataclass

from finqa_cli.types import Architecture

BF16 = 2
TRAINED = 16
LAYER_IN_FULL = 80
GPU_COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFit:
    """An engine on GPUs: how many share its weights, and how many tokens of episodes it can hold besides."""

    gpus: int
    kv_tokens: int


def weights(model: Architecture) -> int:
    """Frozen weights on a GPU."""
    return BF16 * model.parameters


def kv_per_token(model: Architecture) -> int:
    """Keys and values of one token over all layers (Kwon et al., PagedAttention, arXiv 2309.06180, section 3)."""
    return BF16 * model.kv_values_per_token


def trained(model: Architecture, targets: tuple[str, ...], rank: int) -> int:
    """How many weights are trained: those of the adapter, or with rank 0 all."""
    return model.adapter_parameters(targets, rank) if rank else model.parameters


def optimizer(model: Architecture, targets: tuple[str, ...], rank: int) -> int:
    """What is trained, with gradients and AdamW's averages."""
    return TRAINED * trained(model, targets, rank)


def activations(model: Architecture, tokens: int) -> int:
    """About what the backward pass keeps of a micro-batch with gradient checkpointing, the head's logits left out.

    The input of every layer is 2 h bytes a token (Korthikanti et al., arXiv 2205.05198, section 5). The one layer that
    is computed again keeps `LAYER_IN_FULL` h: their section 4 has 34 h with an MLP of 4 h and no attention maps;
    gated MLPs and float32 adapters on every projection make it 73 to 77 h in Llama and Qwen3, as counted by PyTorch's
    `saved_tensors_hooks`.
    """
    return tokens * model.hidden * (2 * model.layers + LAYER_IN_FULL)


def learner(model: Architecture, targets: tuple[str, ...], rank: int, tokens: int) -> int:
    """All that the learner holds on its device during an update; with rank 0 the trained weights are the model's."""
    frozen = weights(model) if rank else 0
    return frozen + optimizer(model, targets, rank) + activations(model, tokens)


def fit_engine(model: Architecture, gpu_bytes: float, *, share: float, tokens: int) -> EngineFit | None:
    """The fewest GPUs that hold the weights and this many tokens; None where eight do not.

    Args:
        model: Its attention heads must divide evenly over the GPUs.
        gpu_bytes: Memory of one.
        share: What of it the engine may use.
        tokens: Of episodes, at least.
    """
    for gpus in GPU_COUNTS:
        room = gpus * gpu_bytes * share - weights(model)
        if room >= tokens * kv_per_token(model) and not (model.heads and model.heads % gpus):
            return EngineFit(gpus=gpus, kv_tokens=int(room // kv_per_token(model)) if model.kv_values_per_token else 0)
    return None
