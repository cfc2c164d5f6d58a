"""Model folders with random weights, made from a configuration on the device: no network and no hub.

Weights are normal with the standard deviation that Qwen3 begins with, save those of the head: its logits have a
standard deviation of 4, so that what is sampled is neither certain nor uniform, and rounding of logits shows. Norms are
1. The shards are of one layer each, so a model is never in memory as a whole: a 14B model is 28 GB on disk.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.device import device
from benchmarks.gpu.scales import ModelShape
from benchmarks.learner.models import write_tokenizer

_LOGIT_DEVIATION = 4.0
_WORDS = 256
"""In the tokenizer, which is there because learner and engine want one beside a model; nothing here is text."""


@contextmanager
def random_model(shape: ModelShape, scratch: Path, *, seed: int = 0) -> Iterator[Path]:
    """A folder with a random model in bfloat16, deleted afterwards."""
    folder = scratch / f"model-{shape.name}"
    try:
        write_model(shape, folder, seed=seed)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_model(shape: ModelShape, folder: Path, *, seed: int) -> None:
    """Writes configuration, shards with their index, and a tokenizer."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    folder.mkdir(parents=True)
    config = configuration(shape)
    config.save_pretrained(folder)
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    generator = torch.Generator(device()).manual_seed(seed)
    where: dict[str, str] = {}
    size = 0
    for number, (_, parts) in enumerate(sorted(_shards(module).items())):
        tensors = {name: _weight(name, part, shape, generator) for name, part in parts.items()}
        file = f"model-{number:05}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, file)
        size += sum(part.nbytes for part in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    write_tokenizer(folder, _WORDS)


def configuration(shape: ModelShape) -> Any:
    """A Qwen3Config."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=shape.tied,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        dtype="bfloat16",
        architectures=["Qwen3ForCausalLM"],
    )


def _shards(module: Any) -> dict[str, dict[str, torch.Tensor]]:
    """Parameters on the meta device by layer; the others by their own name. Tied ones are there once."""
    shards: dict[str, dict[str, torch.Tensor]] = {}
    for name, part in module.named_parameters():
        _, layers, rest = name.partition(".layers.")
        key = f"layer {int(rest.partition('.')[0]):05}" if layers else name
        shards.setdefault(key, {})[name] = part
    return shards


def _weight(name: str, like: torch.Tensor, shape: ModelShape, generator: torch.Generator) -> torch.Tensor:
    weight = torch.empty(like.shape, dtype=torch.bfloat16, device=generator.device)
    if like.dim() == 1:
        return weight.fill_(1.0).cpu()
    head = name.startswith("lm_head") or (shape.tied and "embed_tokens" in name)
    deviation = _LOGIT_DEVIATION / shape.hidden**0.5 if head else 0.02
    return weight.normal_(0.0, deviation, generator=generator).cpu()
