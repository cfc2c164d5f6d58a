"""Memory of a model on a GPU, in bytes: formulas of its architecture.

bfloat16 takes 2 bytes per number, float32 takes 4. Engine and learner keep frozen weights in bfloat16. Trained weights
are float32 with float32 gradients and AdamW's two moments: 4 + 4 + 8 = 16 bytes per weight (Rajbhandari et al., ZeRO,
arXiv 1910.02054, section 3.1, counts the same 16 in mixed precision).

The constants of `activations` were measured, not derived. The learner's own forward and backward pass ran on PyTorch's
meta device with layers of different widths. The constants are a least-squares fit of the bytes alive at the peak, with
an error of 1 %. `tests/unit/placement` measures them again.
"""

from __future__ import annotations

from finqa_cli.types import Architecture

GIB = 2**30
BF16, FP32 = 2, 4

CUDA_CONTEXT = 0.6 * GIB
"""Memory that each process takes on a device that it uses: the CUDA context and cuBLAS workspaces."""

COLLECTIVES = 0.5 * GIB
"""Buffers of NCCL, if several processes train together."""

LOGITS_AT_ONCE = 2**26
"""Most logits that the learner's head computes at once; more are computed in chunks."""

HEAD_COPIES = 4.25
"""Float32 tensors of a chunk's size that exist at the same time in the head: logits, log-probabilities, gradients."""

ENGINE_TOKENS = 8192
"""Tokens of one prefill step of an engine (vLLM's --max-num-batched-tokens)."""

PROBE_TOKENS = 13 * 1024
"""Most tokens that the learner scores after a weight sync, while the engine is awake."""

ENGINE_ROWS = 256
"""Sequences for which an engine samples at once (vLLM's --max-num-seqs)."""


def weights(model: Architecture) -> int:
    """Bytes of all weights, frozen, in bfloat16."""
    return BF16 * model.parameters


def kv_per_token(model: Architecture) -> int:
    """Bytes of the keys and values of one token (Kwon et al., PagedAttention, arXiv 2309.06180, section 3)."""
    return BF16 * model.kv_values_per_token


def trained(model: Architecture, targets: tuple[str, ...], rank: int) -> int:
    """Number of trained weights: those of the adapter, or all weights with rank 0.

    Args:
        model: The model that is trained.
        targets: Names of the layers with an adapter; empty: all that can have one.
        rank: Rank of the adapter; 0 trains all weights.
    """
    return model.adapter_parameters(targets or model.lora_targets, rank) if rank else model.parameters


def activations(model: Architecture, tokens: int, *, rank: int = 16, checkpointing: bool = True) -> int:
    """Peak bytes of the activations of a micro-batch, without the logits of the head; see the module.

    Args:
        model: The model that is trained.
        tokens: Tokens of the micro-batch.
        rank: Rank of the adapter; 0 trains all weights, with the residual stream in float32.
        checkpointing: Keep the input of every layer and all activations of one layer; if False, all of every layer.
    """
    hidden, inner = model.hidden, _inner(model)
    queries = model.heads * model.head_dim or hidden
    keys = model.key_value_heads * model.head_dim or hidden
    if not rank and checkpointing:
        kept = FP32 * model.layers * hidden
        return tokens * (kept + 40 * hidden + 14 * inner + 12 * queries + 9 * keys)
    if not rank:
        return tokens * (model.layers * (24 * hidden + 16 * inner + 17 * queries + 14 * keys) + 20 * hidden)
    layer = 12 * inner + 8 * queries + (17 * keys) // 2
    if checkpointing:
        return tokens * (BF16 * model.layers * hidden + (31 * hidden) // 2 + layer)
    return tokens * (model.layers * (23 * hidden // 2 + layer - 4 * inner) + 21 * hidden)


def logits(model: Architecture, tokens: int, *, rank: int = 16) -> int:
    """Bytes that the head adds to the peak; 0 if the backward pass of one layer, at another time, takes more.

    Args:
        model: The model that is trained.
        tokens: Tokens of the micro-batch.
        rank: Rank of the adapter; 0 trains all weights.
    """
    chunk = min(tokens * model.vocabulary, LOGITS_AT_ONCE)
    layer = activations(model, tokens, rank=rank) - (BF16 if rank else FP32) * tokens * model.layers * model.hidden
    return max(0, int(HEAD_COPIES * FP32 * chunk) - layer)


def learner_items(
    model: Architecture,
    tokens: int,
    *,
    rank: int,
    targets: tuple[str, ...] = (),
    processes: int = 1,
    checkpointing: bool = True,
    reference: bool = False,
) -> dict[str, float]:
    """Bytes of each part of the learner on each of its devices, at the peak of an update.

    Args:
        model: The model that is trained.
        tokens: Tokens of the largest micro-batch.
        rank: Rank of the adapter; 0 trains all weights.
        targets: Layers with an adapter; empty: all that can have one.
        processes: Processes over which weights, gradients and moments are sharded (FSDP2).
        checkpointing: Activations are recomputed.
        reference: If all weights are trained, a frozen copy of the model is kept as reference.
    """
    count = trained(model, targets, rank)
    width = BF16 if rank else FP32
    frozen = width * model.parameters if rank else 0
    whole = frozen + FP32 * count + (BF16 * model.parameters if reference and not rank else 0)
    parts = {
        "weights": whole / processes,
        "gradients": FP32 * count / processes,
        "optimizer": 2 * FP32 * count / processes,
        "activations": float(activations(model, tokens, rank=rank, checkpointing=checkpointing)),
        "logits": float(logits(model, tokens, rank=rank)),
        "cuda_context": CUDA_CONTEXT,
    }
    head = model.vocabulary * model.hidden
    if processes > 1:
        parts["gathered_weights"] = float(width * (_outer(model) + 2 * _layer(model)))
        parts["collectives"] = COLLECTIVES
    if processes > 1 and not rank:
        # Whole gradients before they are sharded: that of the head during all of the backward pass, and that of a layer
        # with a copy that is sent; at the end those of both embeddings twice, when no activations are left.
        last = 2 * FP32 * _outer(model) - parts["activations"] - parts["logits"]
        parts["whole_gradients"] = max(FP32 * (head + 2 * _layer(model)), last)
    elif not rank:
        parts["autocast_weights"] = float(BF16 * model.parameters)
        parts["whole_gradients"] = float(FP32 * head)  # the head's gradient of one chunk, before it is accumulated
    return parts


RESIDENT = ("weights", "optimizer", "cuda_context", "collectives")
"""Parts of the learner that stay on its device between updates."""


def awake_items(
    model: Architecture, parts: dict[str, float], tokens: int, *, rank: int, processes: int
) -> dict[str, float]:
    """Bytes of the learner's parts on a device while an engine generates there, including those of weight syncs.

    Args:
        model: The model that is trained.
        parts: Result of `learner_items`.
        tokens: Tokens of the largest micro-batch.
        rank: Rank of the adapter.
        processes: Processes that train together.
    """
    kept = {name: size for name, size in parts.items() if name in RESIDENT}
    queries = model.heads * model.head_dim or model.hidden
    scored = min(tokens, PROBE_TOKENS)
    states = BF16 * scored * (6 * model.hidden + 3 * _inner(model) + 2 * queries)
    kept["scoring"] = states + 3.0 * FP32 * min(scored * model.vocabulary, LOGITS_AT_ONCE)
    if not rank:  # the largest tensor, gathered, and its copy in bfloat16
        kept["publishing"] = float((BF16 + (FP32 if processes > 1 else 0)) * model.vocabulary * model.hidden)
    return kept


def asleep_items(
    model: Architecture, parts: dict[str, float], *, rank: int, targets: tuple[str, ...] = ()
) -> dict[str, float]:
    """Bytes of the parts of a learner whose frozen weights leave the device while an engine generates there.

    It scores in turns of its own, so that nothing is added for weight syncs.

    Args:
        model: The model that is trained.
        parts: Result of `learner_items`.
        rank: Rank of the adapter, above 0.
        targets: Layers with an adapter; empty: all that can have one.
    """
    adapter = float(FP32 * trained(model, targets, rank))
    return {name: size for name, size in parts.items() if name in RESIDENT} | {"weights": adapter}


def engine_items(model: Architecture, *, devices: int, rank: int, versions: int, graphs: float) -> dict[str, float]:
    """Bytes of each part of an engine replica on each of its devices, without keys and values.

    Args:
        model: The model that the replica serves.
        devices: Number of devices of the replica.
        rank: Rank of the adapters; 0: none.
        versions: Adapters that are served at once.
        graphs: Bytes of compiled graphs and workspaces.
    """
    adapters = BF16 * model.adapter_parameters(model.lora_targets, rank) * versions if rank else 0
    prefill = ENGINE_TOKENS * BF16 * (4 * model.hidden + 3 * _inner(model) / devices)
    drawing = ENGINE_ROWS * model.vocabulary * 2 * FP32
    return {
        "weights": weights(model) / devices,
        "adapters": adapters / devices,
        "activations": prefill + drawing,
        "graphs": graphs,
        "cuda_context": CUDA_CONTEXT,
    }


def kv_on_device(model: Architecture, tokens: int, devices: int) -> float:
    """Bytes of the keys and values of some tokens on each device of a replica; key heads are not split over devices."""
    heads = max(1, model.key_value_heads)
    return kv_per_token(model) * tokens * -(-heads // devices) / heads


def _inner(model: Architecture) -> int:
    """Width of the MLP, taken as the largest width of any linear layer."""
    return max((max(part.inputs, part.outputs) for part in model.linear), default=4 * model.hidden)


def _outer(model: Architecture) -> int:
    """Number of weights of input and output embedding."""
    return model.vocabulary * model.hidden * (1 if model.tied else 2)


def _layer(model: Architecture) -> float:
    """Number of weights of one layer, on average."""
    return (model.parameters - _outer(model)) / max(1, model.layers)
