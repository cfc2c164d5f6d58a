"""Stale batches, enumerated: exact expectations instead of samples."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from fixtures.token_losses import compute_loss, inputs, spec, tensor

from finqa_cli.types import Loss

NO_TRUNCATION = 1e8
REWARDS = {sequence: math.sin(3.0 * place) for place, sequence in enumerate(itertools.product(range(3), repeat=2))}
"""Of the 9 sequences of two tokens out of three."""


class Table:
    """An autoregressive policy over two tokens: logits [3] of the first, [3, 3] of the second given the first."""

    def __init__(self, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.logits = (2 * torch.randn(12, generator=draw, dtype=torch.float64)).requires_grad_()

    def logprobs(self, sequence: Sequence[int]) -> list[torch.Tensor]:
        first = torch.log_softmax(self.logits[:3], -1)
        second = torch.log_softmax(self.logits[3:].view(3, 3), -1)
        return [first[sequence[0]], *(second[sequence[0], token] for token in sequence[1:])]

    def everything(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.stack([value for sequence in sequences for value in self.logprobs(sequence)])

    def probability(self, sequence: Sequence[int]) -> torch.Tensor:
        return torch.stack(self.logprobs(sequence)).sum().exp()

    def gradient(self, objective: torch.Tensor) -> torch.Tensor:
        (result,) = torch.autograd.grad(objective, self.logits)
        return result


def expected_gradient(
    loss: Loss, current: Table, sampler: Table, *, tokens: int, proximal: Table | None = None, told: Table
) -> torch.Tensor:
    """What the loss ascends in expectation over all sequences that the sampler may sample.

    The loss is linear in the advantage, so a sequence's probability may be put there. `told` is what is said to have
    sampled.
    """
    sequences = sorted({sequence[:tokens] for sequence in REWARDS})
    rewards = [REWARDS[(*sequence, 0)[:2]] for sequence in sequences]
    chances = [sampler.probability(sequence).item() for sequence in sequences]
    advantages = tensor(*(r * p for r, p in zip(rewards, chances, strict=True) for _ in range(tokens)))
    near = None if proximal is None else proximal.everything(sequences).detach()
    carried = inputs(told.everything(sequences).detach(), advantages, [tokens] * len(sequences), near)
    everything = current.everything(sequences)
    return -current.gradient(compute_loss(loss, everything, torch.zeros_like(everything), carried).loss)


def on_policy_gradient(current: Table, *, tokens: int) -> torch.Tensor:
    """Of the expected reward."""
    sequences = sorted({sequence[:tokens] for sequence in REWARDS})
    terms = [current.probability(sequence) * REWARDS[(*sequence, 0)[:2]] for sequence in sequences]
    return current.gradient(torch.stack(terms).sum())


def apart(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).norm() / right.norm())


@pytest.mark.parametrize("caps", [{"token_cap": NO_TRUNCATION}, {"sequence_cap": NO_TRUNCATION}])
def test_stale_tokens_give_the_on_policy_gradient(caps: dict[str, float]) -> None:
    current, sampler, proximal = Table(1), Table(2), Table(3)
    wanted = on_policy_gradient(current, tokens=1)
    one_step = expected_gradient(spec(**caps), current, sampler, tokens=1, told=sampler)
    later_step = expected_gradient(spec(**caps), current, sampler, tokens=1, told=sampler, proximal=proximal)
    assert apart(one_step, wanted) <= 1e-12
    assert apart(later_step, wanted) <= 1e-12
    mislabelled = expected_gradient(spec(**caps), current, sampler, tokens=1, told=current)
    clipped = expected_gradient(spec(clip_low=0.2, clip_high=0.2), current, sampler, tokens=1, told=sampler)
    assert apart(mislabelled, wanted) > 0.1
    assert apart(clipped, wanted) > 0.1


def test_only_products_give_the_on_policy_gradient_of_stale_sequences() -> None:
    current, sampler = Table(1), Table(2)
    wanted = on_policy_gradient(current, tokens=2)
    sequence = expected_gradient(spec(sequence_cap=NO_TRUNCATION), current, sampler, tokens=2, told=sampler)
    token = expected_gradient(spec(token_cap=NO_TRUNCATION), current, sampler, tokens=2, told=sampler)
    mislabelled = expected_gradient(spec(token_cap=NO_TRUNCATION), current, sampler, tokens=2, told=current)
    assert apart(sequence, wanted) <= 1e-12
    assert 0.01 < apart(token, wanted) < apart(mislabelled, wanted)


@pytest.mark.parametrize("mode", ["token_cap", "sequence_cap"])
def test_a_cap_biases_exactly_as_published(mode: str) -> None:
    """E_mu[min(w, C) R grad log pi] (truncated) and E_mu[w 1[w <= C] R grad log pi] (masked), for one token."""
    cap, current, sampler = 1.2, Table(1), Table(2)
    terms = []
    for token in range(3):
        chance, weight = sampler.probability([token]).item(), current.probability([token]).item()
        weight = weight / chance
        weight = min(weight, cap) if mode == "token_cap" else weight * (weight <= cap)
        terms.append(chance * weight * REWARDS[(token, 0)] * current.logprobs([token])[0])
    wanted = current.gradient(torch.stack(terms).sum())
    got = expected_gradient(spec(**{mode: cap}), current, sampler, tokens=1, told=sampler)
    assert apart(got, wanted) <= 1e-12
    assert apart(got, on_policy_gradient(current, tokens=1)) > 0.01
