"""The learner on real weights beside plain transformers, PEFT and AdamW, in float32."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.tiny_learners import as_batch, make_learner

from finqa_cli.algorithms.losses import CrossEntropyLoss
from finqa_cli.app import main
from finqa_cli.types import Sample

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FLOAT32 = {"dtype": "float32"}
STORY = (
    "The company reported revenue of $1,234.5 million in 2023, up 4.2% from $1,184.7 million in 2022. Operating income "
    "was $98.1 million; the margin fell because of higher freight costs. The board proposed a dividend of $0.35. "
)


def sample(ids: Sequence[int], start: int) -> Sample:
    """All tokens from `start` on are trained on."""
    mask = tuple(place >= start for place in range(len(ids)))
    weights = tuple(1.0 if each else 0.0 for each in mask)
    return Sample(token_ids=tuple(ids), loss_mask=mask, logprobs=tuple(0.0 for _ in ids), advantages=weights)


def forward(model: Any, row: Sample) -> Any:
    """Log-probability of each token of one unpadded sequence, by a plain forward pass."""
    ids = torch.tensor([[int(token) for token in row.token_ids]])
    logits = model(ids, use_cache=False).logits[0, :-1].float()
    chosen = logits.gather(1, ids[0, 1:, None])[:, 0] - logits.logsumexp(-1)
    return torch.cat([chosen.new_zeros(1), chosen])


def gap(model: Any, row: Sample, found: Any) -> float:
    """Largest difference at a token with loss, in nats."""
    with torch.inference_mode():
        theirs = forward(model, row).numpy()
    mask = np.array(row.loss_mask)
    return float(np.abs(np.asarray(found)[mask] - theirs[mask]).max())


def chats(tokenizer: Any) -> list[Sample]:
    """Three attempts at one question, which share an opening of several hundred tokens, and one at another."""
    asked = [{"role": "system", "content": STORY * 4}, {"role": "user", "content": "What was the margin in 2023?"}]
    opening = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    replies = (STORY, "98.1 / 1,234.5 = 7.9 %.", "The margin was 7.9 %, after 8.6 % in 2022. " + STORY)
    rows = [sample([*opening, *tokenizer(reply).input_ids], len(opening)) for reply in replies]
    other = tokenizer.apply_chat_template([asked[1]], add_generation_prompt=True, return_dict=False)
    return [*rows, sample([*other, *tokenizer("Unknown.").input_ids], len(other))]


@pytest.mark.parametrize("packing", ["auto", "off"])
def test_log_probabilities_are_those_of_a_plain_forward_pass(
    smollm2: Path, plain: Any, tokenizer: Any, packing: str
) -> None:
    rows = chats(tokenizer)
    learner = make_learner(smollm2, {**FLOAT32, "packing": packing}, lora_target_modules=TARGETS)
    assert learner.packs() == (packing == "auto")
    found = learner.logprobs(rows)
    assert max(gap(plain, row, ours) for row, ours in zip(rows, found, strict=True)) <= 1e-4


def test_log_probabilities_beyond_a_sliding_window(gemma3: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gemma3)
    opening = tokenizer(STORY * 9).input_ids
    rows = [
        sample([*opening, *tokenizer(text, add_special_tokens=False).input_ids], len(opening) - 40)
        for text in (STORY * 2, "The margin fell.")
    ]
    model = AutoModelForCausalLM.from_pretrained(gemma3, dtype=torch.float32).eval()
    assert len(opening) > 1.1 * model.config.sliding_window
    found = make_learner(gemma3, FLOAT32, lora_target_modules=TARGETS).logprobs(rows)
    assert max(gap(model, row, ours) for row, ours in zip(rows, found, strict=True)) <= 1e-4


def test_a_step_is_that_of_peft_and_adamw_and_its_export_is_peft_merged(
    smollm2: Path, plain: Any, tokenizer: Any, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    rows = chats(tokenizer)[1:]
    rate = 2e-3
    learner = make_learner(
        smollm2, FLOAT32, lora_rank=16, learning_rate=rate, lora_target_modules=TARGETS, max_grad_norm=0.0
    )
    start = learner.publish(tmp_path / "start", 0).adapter
    base = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    peft = PeftModel.from_pretrained(base, start, is_trainable=True).train()
    optimizer = torch.optim.AdamW([part for part in peft.parameters() if part.requires_grad], lr=rate, weight_decay=0.0)
    for _ in range(2):  # the second step has a gradient for the first factor too, which begins with none
        report = learner.update(as_batch(rows), CrossEntropyLoss())
        optimizer.zero_grad()
        chosen = [forward(peft, row)[torch.tensor(row.loss_mask)] for row in rows]
        loss = -torch.cat(chosen).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(peft.parameters(), float("inf"))
        optimizer.step()
        assert report.loss == pytest.approx(loss.item(), rel=1e-3)
        assert report.grad_norm == pytest.approx(norm.item(), rel=1e-2)

    adapter = learner.publish(tmp_path / "adapter", 1).adapter
    assert (
        main(["export", str(adapter), "--to", "merged", "--dtype", "float32", "--out", str(tmp_path / "merged")]) == 0
    )
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    whole = (
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32), adapter)
        .merge_and_unload()
        .eval()
    )
    for row in rows:
        ids = torch.tensor([[int(token) for token in row.token_ids]])
        with torch.inference_mode():
            theirs, ours, before = (model(ids).logits[0].log_softmax(-1) for model in (whole, exported, plain))
        assert (ours - theirs).abs().max().item() <= 1e-4
        assert (before - theirs).abs().max().item() > 0.1, "the check could not fail"
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["model_type"] == "llama"
