"""A random Qwen3 or Gemma 3 with a tokenizer of numbers, and where its training begins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.learner.jobs import LEARNING_RATE, ModelSize, Packing, Preparation
from benchmarks.learner.shapes import OWN_TOKENS, Shape, episodes
from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_cli.algorithms.packing import pack
from finqa_cli.contracts import LearnerContext
from finqa_cli.types import Sample
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.torch_learner import TorchLearner

LORA_RANK, LORA_ALPHA, MAX_GRAD_NORM = 16, 32, 1.0
LOSS = PolicyGradientLoss(clip_low=0.2, clip_high=0.2)
_FIRST_RATE = 1e-2
"""One step of AdamW moves each weight by about its rate, which makes the second factor of the adapter as large as the
first one."""


def make_learner(
    folder: Path, *, checkpointing: bool, packing: Packing = "auto", learning_rate: float = LEARNING_RATE
) -> TorchLearner:
    """Our learner of the model in `folder`, with the adapter of the published form."""
    context = LearnerContext(
        model=str(folder / "model"),
        learning_rate=learning_rate,
        lora_rank=LORA_RANK,
        lora_alpha=LORA_ALPHA,
        gradient_checkpointing=checkpointing,
        max_grad_norm=MAX_GRAD_NORM,
    )
    return TorchLearner(TorchLearnerConfig(device="cpu", packing=packing), context)


def prepare(preparation: Preparation) -> None:
    """Writes `model`, `checkpoint` (of our learner), `adapter` (the same weights for PEFT) and `logprobs.json`."""
    folder = preparation.folder
    make_model(preparation.model, folder / "model")
    learner = make_learner(folder, checkpointing=False, learning_rate=_FIRST_RATE)
    first = episodes(preparation.shape, preparation.shape.group, seed=1)
    learner.update(pack(first, token_budget=4096, max_rows=4), LOSS)
    learner.save(folder / "checkpoint")
    learner.publish(folder / "adapter", 1)
    scored = learner.logprobs(episodes(preparation.shape, preparation.scored)) if preparation.scored else ()
    (folder / "logprobs.json").write_text(json.dumps([row.tolist() for row in scored]), encoding="utf-8")


def sampled_episodes(folder: Path, shape: Shape, count: int) -> Sequence[Sample]:
    """Episodes with the log-probabilities that `folder` has of them; 0 without any."""
    rows = json.loads((folder / "logprobs.json").read_text(encoding="utf-8"))
    found = episodes(shape, count)
    if not rows:
        return found
    return [replace(sample, logprobs=tuple(row)) for sample, row in zip(found, rows[:count], strict=True)]


def make_model(size: ModelSize, folder: Path) -> None:
    """Writes configuration, float32 weights and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, Gemma3TextConfig, Qwen3Config

    head = size.hidden // size.heads
    kind: Any = Qwen3Config
    own: dict[str, int] = {}
    if size.window:
        kind, own = Gemma3TextConfig, {"sliding_window": size.window, "query_pre_attn_scalar": head}
    config = kind(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=head,
        intermediate_size=size.feed_forward,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        **own,
    )
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    write_tokenizer(folder, size.vocabulary)


def write_tokenizer(folder: Path, words: int) -> None:
    """Writes a tokenizer whose words are numbers: two tokens of its own, then `2`, `3`, up to `words`."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    own = ("<pad>", "<end>")
    places = {word: place for place, word in enumerate((*own, *map(str, range(OWN_TOKENS, words))))}
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(places, unk_token=own[0])), pad_token=own[0], eos_token=own[1]
    )
    tokenizer.save_pretrained(folder)
