"""Packed rows and shared openings of models with sliding windows, capped scores or sinks, against transformers' own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from fixtures.tiny_learners import as_batch, gradient, make_learner, random_sample, relative
from fixtures.windowed_models import FAMILIES, WINDOW, make_windowed

from finqa_cli.algorithms.losses import CrossEntropyLoss
from finqa_cli.types import Sample
from finqa_plugins.learners.torch.packed_rows import takes_packed_rows

OPENINGS = {"none": 0, "within the window": WINDOW - 2, "beyond the window": 5 * WINDOW}


@pytest.fixture(scope="module", params=FAMILIES)
def windowed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_windowed(tmp_path_factory.mktemp("windowed") / request.param, request.param)


def samples_of(opening: int) -> list[Sample]:
    """Two groups that share an opening, and rows both longer and shorter than the window."""
    rng = random.Random(opening)
    grouped = [
        random_sample(rng, opening=[*range(60, 60 + opening), *[group] * (40 if opening else 0)])
        for group in (1, 2)
        for _ in range(3)
    ]
    short = Sample(token_ids=(5, 6, 7), loss_mask=(False, True, True), logprobs=(0.0,) * 3, advantages=(0.0, 1.0, 1.0))
    return [*grouped, short, random_sample(rng), random_sample(rng)]


def own_logprobs(model: Any, sample: Sample) -> torch.Tensor:
    """[N] of its tokens with loss, by transformers' eager attention over the sequence alone."""
    ids = torch.from_numpy(sample.token_ids).long()
    logprobs = model(input_ids=ids[None]).logits[0].float().log_softmax(-1)
    places = torch.from_numpy(sample.loss_mask).nonzero()[:, 0]
    found: torch.Tensor = logprobs[places - 1, ids[places]]
    return found


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_packed_rows_are_transformers_own_of_each_sequence(windowed: Path, opening: int) -> None:
    samples = samples_of(opening)
    learner = make_learner(windowed, {"packing": "on"}, lora_rank=0)
    if opening > WINDOW:
        inputs = learner._collate(samples)
        assert inputs.token_ids.shape[1] < sum(len(sample.token_ids) for sample in samples) - 3 * opening, "shared"
    model = transformers.AutoModelForCausalLM.from_pretrained(windowed, attn_implementation="eager")
    wanted = [own_logprobs(model, sample) for sample in samples]
    for sample, found, row in zip(samples, learner.logprobs(samples), wanted, strict=True):
        assert found[sample.loss_mask] == pytest.approx(row.detach().numpy(), abs=1e-5)
    batch = as_batch(samples)
    (-torch.cat(wanted).sum() / batch.loss_tokens).backward()
    weights = dict(model.named_parameters())
    names = [name for name, part in learner._causal.named_parameters() if part.requires_grad]
    reference = torch.cat([weights[name].grad.flatten() for name in names if weights[name].grad is not None])
    assert relative(gradient(learner, batch, CrossEntropyLoss()), reference) <= 1e-5


@pytest.mark.parametrize("size", [WINDOW, None])
def test_the_window_matters_in_these_models(windowed: Path, size: int | None) -> None:
    """Otherwise the tests above would show nothing."""
    config = transformers.AutoConfig.from_pretrained(windowed)
    model = transformers.AutoModelForCausalLM.from_pretrained(windowed, attn_implementation="eager")
    config.sliding_window = size or 1000
    other = transformers.AutoModelForCausalLM.from_pretrained(windowed, config=config, attn_implementation="eager")
    sample = samples_of(5 * WINDOW)[0]
    with torch.no_grad():
        apart = float((own_logprobs(model, sample) - own_logprobs(other, sample)).abs().max())
    assert apart == 0 if size else apart > 1e-2


def test_padded_rows_are_the_same(windowed: Path) -> None:
    samples = samples_of(5 * WINDOW)
    packed, padded = (make_learner(windowed, {"packing": how}, lora_rank=0) for how in ("on", "off"))
    for left, right in zip(packed.logprobs(samples), padded.logprobs(samples), strict=True):
        assert left == pytest.approx(right, abs=1e-5)
    assert relative(gradient(packed, as_batch(samples)), gradient(padded, as_batch(samples))) <= 1e-5


def test_blocks_of_queries_have_the_window(windowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = samples_of(5 * WINDOW)
    packed, padded = (make_learner(windowed, {"packing": how}, lora_rank=0) for how in ("on", "off"))
    monkeypatch.setattr("finqa_plugins.learners.torch.packed_rows._QUERIES_PER_BLOCK", 4)
    assert relative(gradient(packed, as_batch(samples)), gradient(padded, as_batch(samples))) <= 1e-5


def test_without_segments_it_is_the_attention_of_each_row(windowed: Path) -> None:
    model, own = (
        transformers.AutoModelForCausalLM.from_pretrained(windowed, attn_implementation="eager") for _ in range(2)
    )
    assert takes_packed_rows(model, "on")
    ids = torch.arange(60).view(2, 30) + 5
    with torch.no_grad():
        assert torch.allclose(model(input_ids=ids).logits, own(input_ids=ids).logits, rtol=0, atol=2e-5)
    assert model.config.sliding_window == WINDOW


def test_another_window_is_found_out(tmp_path: Path) -> None:
    """A layer that passes on another window than its mask has."""
    model = transformers.AutoModelForCausalLM.from_pretrained(make_windowed(tmp_path / "model", "qwen3"))
    for layer in model.model.layers:
        layer.self_attn.sliding_window = None
    assert not takes_packed_rows(model, "auto")
    assert model.config.sliding_window == WINDOW
    assert model.config._attn_implementation == "sdpa"
