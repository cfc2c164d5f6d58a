"""A small change by an adapter survives a layer in bfloat16, in the learner as in the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples
from torch import nn
from transformers.pytorch_utils import Conv1D

from finqa_plugins.engines.transformers.lora_adapter import AdapterSlot, Patch
from finqa_plugins.learners.torch.adapter_layers import RoundedOnce
from finqa_plugins.precision import linear_plus


def kept_share(result: torch.Tensor, base: torch.Tensor, added: torch.Tensor) -> float:
    """How much of a change is in a result, on average."""
    return float(((result.float() - base.float()) * added.sign()).mean() / added.abs().mean())


@pytest.mark.parametrize("bias", [False, True])
def test_a_change_below_half_of_the_last_bit_is_kept_on_average(bias: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(4, 64, 256, generator=draw).bfloat16()
    weight = (0.05 * torch.randn(256, 512, generator=draw)).bfloat16()
    shift = torch.randn(512, generator=draw).bfloat16() if bias else None
    added = 5e-4 * torch.randn(4, 64, 512, generator=draw)
    base = linear_plus(states, weight, shift, torch.zeros_like(added))
    assert base.shape == added.shape and base.dtype == torch.bfloat16
    torch.testing.assert_close(base, nn.functional.linear(states, weight.t(), shift), rtol=2e-2, atol=2e-2)
    assert kept_share(linear_plus(states, weight, shift, added), base, added) == pytest.approx(1, abs=0.15)
    assert kept_share((base + added).bfloat16(), base, added) < 0.5, "as it is added after the rounding"


def test_in_bfloat16_a_learner_adds_before_it_rounds_and_in_float32_as_peft(learner_model: Path) -> None:
    samples = random_samples(4)
    found = {}
    for dtype in ("float32", "bfloat16"):
        learner = make_learner(learner_model, {"dtype": dtype}, lora_dropout=0.1)
        layers = [part for part in learner._model.modules() if isinstance(part, RoundedOnce)]
        assert bool(layers) is (dtype == "bfloat16")
        before = learner.logprobs(samples)
        learner.update(as_batch(samples), GRPO_LOSS)
        reference, after = learner.reference_logprobs(samples), learner.logprobs(samples)
        assert all((one == two).all() for one, two in zip(before, reference, strict=True)), "the adapter began at 0"
        found[dtype] = torch.tensor([float((one - two).sum()) for one, two in zip(after, before, strict=True)])
    assert torch.nn.functional.cosine_similarity(found["float32"], found["bfloat16"], dim=0) > 0.9


@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
def test_an_engine_does_the_same_and_gives_the_layer_back(kind: type) -> None:
    torch.manual_seed(0)
    layer = (nn.Linear(256, 128, bias=True) if kind is nn.Linear else Conv1D(128, 256)).bfloat16()
    module = nn.ModuleDict({"part": layer})
    down, up = 0.01 * torch.randn(4, 256), 0.01 * torch.randn(128, 4)
    states = torch.randn(2, 50, 256).bfloat16()
    slot, base = AdapterSlot(module), layer(states)
    slot.put([Patch("part", layer, down, up, 0.5)])
    added = 0.5 * (states.float() @ down.T @ up.T)
    assert kept_share(layer(states), base, added) == pytest.approx(1, abs=0.2)
    slot.put([])
    assert torch.equal(layer(states), base) and "forward" not in vars(layer)
