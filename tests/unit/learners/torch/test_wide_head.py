"""Logits in float32 from a head in bfloat16: how much nearer log-probabilities and gradients come to float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fixtures.tiny_learners import GRPO_LOSS, as_batch, gradient, make_learner, random_samples, relative
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from finqa_cli.errors import ConfigError
from finqa_cli.types import Sample
from finqa_plugins.learners.torch.forward import state_logprobs

HALF = {"dtype": "bfloat16"}


def head_of(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Linear:
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    head.weight.data.copy_(weight)
    if bias is not None:
        head.bias.data.copy_(bias)
    return head


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk", [2**26, 4000 * 5])
def test_log_probabilities_are_those_of_float32(monkeypatch: pytest.MonkeyPatch, bias: bool, chunk: int) -> None:
    """A vocabulary of 4,000 with logits of deviation 4: rounding of the output alone is 8e-3 nats, and gone."""
    monkeypatch.setattr("finqa_plugins.learners.torch.forward._LOGITS_PER_CHUNK", chunk)
    draw = torch.Generator().manual_seed(0)
    weight = (0.25 * torch.randn(4000, 256, generator=draw)).bfloat16()
    states = torch.randn(64, 256, generator=draw).bfloat16()
    shift = torch.randn(4000, generator=draw).bfloat16() if bias else None
    targets = torch.randint(4000, (64,), generator=draw)
    exact_states = states.double().requires_grad_()
    logits = exact_states @ weight.double().t() + (0 if shift is None else shift.double())
    exact = torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]
    exact.sum().backward()  # type: ignore[no-untyped-call]
    assert exact_states.grad is not None
    head = head_of(weight, shift)
    causal = SimpleNamespace(get_output_embeddings=lambda: head.requires_grad_(False))
    errors, gradients = {}, {}
    for wide in (False, True):
        leaf = states.clone().requires_grad_()
        found, _ = state_logprobs(causal, leaf, targets, 1.0, wide=wide)
        found.sum().backward()  # type: ignore[no-untyped-call]
        assert found.dtype == torch.float32 and leaf.grad is not None
        errors[wide] = float((found.double() - exact).square().mean().sqrt())
        gradients[wide] = relative(leaf.grad.double(), exact_states.grad)
    assert errors[True] < 1e-5 < 3e-3 < errors[False]
    assert gradients[True] < 5e-3
    assert gradients[True] <= gradients[False]


@settings(deadline=None, max_examples=30)
@given(
    tokens=st.integers(1, 40),
    vocabulary=st.integers(2, 90),
    temperature=st.sampled_from([1.0, 0.7, 3.0]),
    bias=st.booleans(),
    rows=st.integers(1, 50),
    seed=st.integers(0, 2**16),
)
def test_a_frozen_head_gives_what_a_trained_one_gives(
    tokens: int, vocabulary: int, temperature: float, bias: bool, rows: int, seed: int
) -> None:
    """A head that is trained is computed by autograd, chunk for chunk, and again in the backward pass."""
    draw = torch.Generator().manual_seed(seed)
    head = nn.Linear(8, vocabulary, bias=bias, dtype=torch.float64)
    states = torch.randn(tokens, 8, generator=draw, dtype=torch.float64)
    targets = torch.randint(vocabulary, (tokens,), generator=draw)
    weights = torch.randn(tokens, generator=draw, dtype=torch.float64)
    causal = SimpleNamespace(get_output_embeddings=lambda: head)
    found = {}
    for trained in (True, False):
        head.requires_grad_(trained)
        leaf = states.clone().requires_grad_()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("finqa_plugins.learners.torch.forward._LOGITS_PER_CHUNK", rows * vocabulary)
            logprobs, entropy = state_logprobs(causal, leaf, targets, temperature)
            (weights * logprobs).sum().backward()
        assert leaf.grad is not None and not entropy.requires_grad
        found[trained] = logprobs.detach(), entropy, leaf.grad
    torch.testing.assert_close(found[False], found[True])


class Products(TorchDispatchMode):
    """Counts multiplications of numbers in matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.mm.default:
            self.count += args[0].numel() * args[1].shape[1]
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("trained", [False, True])
def test_a_frozen_head_is_multiplied_twice_where_a_trained_one_is_four_times(trained: bool) -> None:
    """A trained one is computed again in the backward pass, and has a gradient of its own."""
    head, states = nn.Linear(64, 1000, bias=False).requires_grad_(trained), torch.randn(50, 64).requires_grad_()
    causal = SimpleNamespace(get_output_embeddings=lambda: head)
    with pytest.MonkeyPatch.context() as patch, Products() as products:
        patch.setattr("finqa_plugins.learners.torch.forward._LOGITS_PER_CHUNK", 8_000)
        state_logprobs(causal, states, torch.zeros(50, dtype=torch.long), 1.0)[0].sum().backward()
    assert products.count == (4 if trained else 2) * 50 * 64 * 1000


@pytest.mark.parametrize("autocast", [False, True])
def test_a_trained_head_gets_its_gradient(autocast: bool) -> None:
    """Under autocast weights are float32 and the product is of what they are rounded to."""
    draw = torch.Generator().manual_seed(1)
    weight = torch.randn(300, 32, generator=draw)
    states = torch.randn(20, 32, generator=draw)
    if not autocast:
        weight, states = weight.bfloat16(), states.bfloat16()
    targets = torch.randint(300, (20,), generator=draw)
    exact_weight = weight.bfloat16().double().requires_grad_()
    exact = torch.log_softmax(states.bfloat16().double() @ exact_weight.t(), -1).gather(1, targets[:, None])[:, 0]
    exact.sum().backward()  # type: ignore[no-untyped-call]
    assert exact_weight.grad is not None
    head = head_of(weight)
    causal = SimpleNamespace(get_output_embeddings=lambda: head)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found, _ = state_logprobs(causal, states, targets, 1.0, wide=True)
        found.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.allclose(found.double(), exact, rtol=0, atol=1e-5)
    assert head.weight.grad is not None and head.weight.grad.dtype == weight.dtype
    assert relative(head.weight.grad.double(), exact_weight.grad) < 5e-3


def rows(learner_model: Path, samples: Sequence[Sample], **options: str) -> torch.Tensor:
    learner = make_learner(learner_model, options)
    return torch.tensor([value for row in learner.logprobs(samples) for value in row])


def test_a_learner_in_bfloat16_has_a_wide_head_by_default(learner_model: Path) -> None:
    samples = random_samples(6)
    default, wide, narrow = (
        rows(learner_model, samples, **HALF, head_dtype=each) for each in ("auto", "float32", "model")
    )
    assert torch.equal(default, wide) and not torch.equal(wide, narrow)
    full, also = (rows(learner_model, samples, head_dtype=each) for each in ("float32", "model"))
    assert torch.equal(full, also), "in float32 there is nothing to widen"


@pytest.mark.parametrize("rank", [0, 4])
def test_its_gradient_is_no_further_from_that_of_float32(learner_model: Path, rank: int) -> None:
    samples = random_samples(6)
    found = {
        each: gradient(make_learner(learner_model, options, lora_rank=rank), as_batch(samples), GRPO_LOSS).float()
        for each, options in {
            "float32": {},
            "wide": {**HALF, "head_dtype": "float32"},
            "narrow": {**HALF, "head_dtype": "model"},
        }.items()
    }
    wide, narrow = (relative(found[each], found["float32"]) for each in ("wide", "narrow"))
    assert 0 < wide < 0.05
    assert wide < 1.2 * narrow


def test_a_head_with_an_adapter_stays_as_it_is(learner_model: Path) -> None:
    targets = ("q_proj", "lm_head")
    make_learner(learner_model, HALF, lora_target_modules=targets).logprobs(random_samples(1))
    with pytest.raises(ConfigError, match="head without an adapter") as error:
        make_learner(learner_model, {**HALF, "head_dtype": "float32"}, lora_target_modules=targets)
    assert error.value.remedy == "--set learner.options.head_dtype=model"
