"""GSPO, CISPO, the dual clip, KL and entropy: closed forms without a model."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from fixtures.token_losses import anchored, compute_loss, inputs, outcome, spec, tensor
from fixtures.typed_losses import typed
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from finqa_cli.algorithms.losses import CrossEntropyLoss
from finqa_cli.types import Loss
from finqa_plugins.learners.torch.forward import Inputs

CLIPS = {"clip_low": 0.2, "clip_high": 0.3}
CAPS = (
    {"token_cap": 2.0},
    {"sequence_cap": 2.0},
    {"icepop_floor": 0.1, "icepop_cap": 5.0},
    {"geometric_floor": 0.1, "geometric_cap": 5.0},
)


def named(name: str, **parameters: float) -> Loss:
    return typed(name, **parameters)


def test_gspo_by_hand() -> None:
    """Ratios 2 and 1/2 have the geometric mean 1, as do none; 4 and 1 have 2, which the clip stops for A > 0 only."""
    ratios, advantages = tensor(2, 0.5, 4, 1, 4, 1), tensor(1, 1, 1, 1, -1, -1)
    current = tensor(-1, -2, -3, -0.5, -2, -1)
    carried = anchored(current - ratios.log(), advantages, [2, 2, 2])
    result, gradient = outcome(named("gspo", **CLIPS), current, carried)
    torch.testing.assert_close(gradient, -tensor(1, 1, 0, 0, -2, -2))
    assert result.loss.item() == pytest.approx(-(2 * 1 + 2 * 1.3 - 2 * 2))
    assert float(result.sums["ratio_mean"]) == pytest.approx(2 * (1 + 2 + 2))
    assert float(result.sums["clip_fraction"]) == 2


def test_gspo_is_the_published_objective() -> None:
    """Mean over a row of its token losses is min(s A, clip(s) A) with s = exp(mean log ratio), gradients included."""
    current, anchor = tensor(-1.0, -2.0, -0.3), tensor(-1.2, -1.7, -0.35)
    for advantage in (0.7, -0.7):
        carried = anchored(anchor, torch.full_like(anchor, advantage), [3])
        result, gradient = outcome(named("gspo", clip_low=0.01, clip_high=0.01), current, carried)
        leaf = current.clone().requires_grad_()
        ratio = (leaf - anchor).mean().exp()
        objective = torch.minimum(ratio * advantage, ratio.clamp(0.99, 1.01) * advantage)
        objective.backward()  # type: ignore[no-untyped-call]
        assert result.loss.item() / 3 == pytest.approx(-objective.item(), rel=1e-12)
        torch.testing.assert_close(gradient / 3, -leaf.grad)


def test_cispo_by_hand() -> None:
    """Weights are ratios clipped to [0.8, 1.3], and no token loses its gradient."""
    ratios, advantages = tensor(0.5, 1.1, 4.0, 4.0), tensor(1.0, -1.0, 0.5, -0.5)
    current = tensor(-1.0, -2.0, -3.0, -0.2)
    result, gradient = outcome(named("cispo", **CLIPS), current, anchored(current - ratios.log(), advantages, [4]))
    weights = tensor(0.8, 1.1, 1.3, 1.3)
    torch.testing.assert_close(gradient, -weights * advantages)
    assert result.loss.item() == pytest.approx(-(weights * advantages * current).sum().item())
    assert float(result.sums["clip_fraction"]) == 3
    assert float(result.sums["ratio_mean"]) == pytest.approx(9.6)
    _, upper = outcome(named("cispo", clip_high=0.3), current, anchored(current - ratios.log(), advantages, [4]))
    torch.testing.assert_close(upper, -tensor(0.5, 1.1, 1.3, 1.3) * advantages)


def test_the_dual_clip_stops_only_large_ratios_with_a_negative_advantage() -> None:
    ratios, advantages = tensor(4.0, 2.0, 0.5, 4.0, 0.5), tensor(-1.0, -1.0, -1.0, 1.0, 1.0)
    current = tensor(-1.0, -2.0, -3.0, -0.2, -0.3)
    carried = anchored(current - ratios.log(), advantages, [5])
    result, gradient = outcome(spec(**CLIPS, dual_clip=3.0), current, carried)
    torch.testing.assert_close(gradient, -tensor(0.0, -2.0, 0.0, 0.0, 0.5))
    assert result.loss.item() == pytest.approx(-(-3.0 - 2.0 - 0.8 + 1.3 + 0.5))
    assert float(result.sums["dual_clip_fraction"]) == 1
    plain, _ = outcome(spec(**CLIPS), current, carried)
    assert plain.loss.item() == pytest.approx(-(-4.0 - 2.0 - 0.8 + 1.3 + 0.5))
    assert "dual_clip_fraction" not in plain.sums


@pytest.mark.parametrize("name", ["policy_gradient", "gspo", "cispo"])
def test_kl_terms_by_hand(name: str) -> None:
    """Ratio 1, logp - reference = 0.5 and -0.25; no advantage, so that nothing else is left."""
    current, reference = tensor(-1.0, -2.0), tensor(-1.5, -1.75)
    carried = replace(inputs(current, tensor(0, 0), [2]), reference_logprobs=reference)
    gap = [0.5, -0.25]
    k3, gradient = outcome(named(name, **CLIPS, kl_k3=0.1), current, carried)
    each = [math.exp(-value) - 1 + value for value in gap]
    assert k3.loss.item() == pytest.approx(0.1 * sum(each))
    torch.testing.assert_close(gradient, 0.1 * tensor(*(1 - math.exp(-value) for value in gap)))
    k1, gradient = outcome(named(name, **CLIPS, kl_k1=0.1), current, carried)
    assert k1.loss.item() == pytest.approx(0.1 * sum(gap))
    torch.testing.assert_close(gradient, 0.1 * tensor(*(value + 1 for value in gap)))
    for result in (k1, k3, outcome(named(name), current, carried)[0]):
        assert float(result.sums["kl_reference"]) == pytest.approx(sum(each))


@pytest.mark.parametrize("caps", [{"token_cap": 2.0}, {"sequence_cap": 2.0}])
def test_importance_weights_weigh_the_kl_and_leave_the_entropy(caps: dict[str, float]) -> None:
    """The sampler found the row's only token twice as likely, so its weight is 1/2."""
    current, reference = tensor(-1.0), tensor(-1.5)
    carried = replace(inputs(current + math.log(2), tensor(0), [1]), reference_logprobs=reference)
    _, gradient = outcome(spec(kl_k3=0.1, **caps), current, carried)
    torch.testing.assert_close(gradient, tensor(0.5 * 0.1 * (1 - math.exp(-0.5))))
    entropy = tensor(2.0).requires_grad_()
    loss = compute_loss(spec(entropy_coef=0.1, **caps), current, entropy, carried).loss
    loss.backward()  # type: ignore[no-untyped-call]
    assert entropy.grad is not None and entropy.grad.item() == pytest.approx(-0.1)


@pytest.mark.parametrize("name", ["policy_gradient", "gspo", "cispo", "cross_entropy"])
def test_weights_multiply_everything(name: str) -> None:
    current, entropy = tensor(-1.0, -2.0, -0.5), tensor(1.0, 2.0, 3.0)
    more = {} if name == "cross_entropy" else {"kl_k3": 0.1, "entropy_coef": 0.2, "clip_high": 0.3}
    plain = replace(inputs(current - 0.1, tensor(1, 1, -1), [2, 1]), reference_logprobs=current - 0.4)
    weights = tensor(0.5, 0.5, 3.0)
    function = partial(compute_loss, named(name, **more))
    one_by_one = []
    for place in range(3):
        only = torch.zeros(3, dtype=torch.float64)
        only[place] = 1
        one_by_one.append(function(current, entropy, replace(plain, weights=only)).loss)
    weighted = function(current, entropy, replace(plain, weights=weights)).loss
    torch.testing.assert_close(weighted, (weights * torch.stack(one_by_one)).sum())
    torch.testing.assert_close(function(current, entropy, plain).loss, torch.stack(one_by_one).sum())


@pytest.mark.parametrize("name", ["gspo", "cispo"])
@pytest.mark.parametrize("caps", CAPS)
def test_off_policy_corrections_weigh_every_objective(name: str, caps: dict[str, float]) -> None:
    """The ratio to the proximal policy is 1, so what is left of the gradient is -w A, as for PPO."""
    current, sampler = tensor(-1.0, -2.0, -3.0), tensor(-1.3, -1.5, -2.0)
    carried = inputs(sampler, tensor(1.0, 1.0, -2.0), [2, 1])
    for proximal in (None, current):
        carried = replace(carried, proximal_logprobs=proximal)
        _, plain = outcome(spec(**CLIPS, **caps), current, carried)
        result, gradient = outcome(named(name, **CLIPS, **caps), current, carried)
        torch.testing.assert_close(gradient, plain)
        assert plain.abs().min() > 0
        assert float(result.sums["clip_fraction"]) == 0
    away = replace(carried, proximal_logprobs=current - 0.5)
    result, _ = outcome(named(name, **CLIPS, **caps), current, away)
    assert float(result.sums["ratio_mean"]) == pytest.approx(3 * math.exp(0.5)), "the clip is around the proximal one"


# --- KL estimators, enumerated over a vocabulary of five


def policies() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    logits, reference, sampler = torch.randn(3, 5, generator=draw, dtype=torch.float64)
    return logits.requires_grad_(), torch.log_softmax(reference, -1), torch.log_softmax(sampler, -1)


def divergence(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left.exp() * (left - right)).sum()


def expected(loss: Loss, logits: torch.Tensor, sampler: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The KL part of the loss, in expectation over what the sampler samples."""
    current = torch.log_softmax(logits, -1)
    carried = inputs(sampler, torch.zeros_like(sampler), [1] * 5)
    carried = replace(carried, reference_logprobs=reference, weights=sampler.exp())
    return compute_loss(loss, current, torch.zeros_like(current), carried).loss


@pytest.mark.parametrize("name", ["kl_k1", "kl_k3"])
def test_both_estimators_are_the_divergence_in_expectation(name: str) -> None:
    logits, reference, _ = policies()
    current = torch.log_softmax(logits.detach(), -1)
    value = expected(spec(**{name: 1.0}), logits, current, reference)
    torch.testing.assert_close(value, divergence(current, reference), rtol=1e-12, atol=0)


def test_k1_in_the_loss_has_the_gradient_of_the_divergence_whoever_sampled() -> None:
    logits, reference, other = policies()
    (wanted,) = torch.autograd.grad(divergence(torch.log_softmax(logits, -1), reference), logits)
    current = torch.log_softmax(logits.detach(), -1)
    (found,) = torch.autograd.grad(expected(spec(kl_k1=1.0), logits, current, reference), logits)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    for sampler in (current, other):
        corrected = spec(kl_k1=1.0, token_cap=1e6)
        (found,) = torch.autograd.grad(expected(corrected, logits, sampler, reference), logits)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_k3_in_the_loss_has_on_policy_the_gradient_of_the_other_direction() -> None:
    logits, reference, other = policies()
    current = torch.log_softmax(logits.detach(), -1)
    (wanted,) = torch.autograd.grad(divergence(reference, torch.log_softmax(logits, -1)), logits)
    (found,) = torch.autograd.grad(expected(spec(kl_k3=1.0), logits, current, reference), logits)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    (stale,) = torch.autograd.grad(expected(spec(kl_k3=1.0), logits, other, reference), logits)
    assert (stale - wanted).norm() > 0.1 * wanted.norm(), "so importance weights matter"
    (found,) = torch.autograd.grad(expected(spec(kl_k3=1.0, token_cap=1e6), logits, other, reference), logits)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@given(
    st.lists(st.tuples(*[st.floats(-700, 0, width=32)] * 3, st.sampled_from([1.0, -1.0, 0.0])), min_size=1, max_size=6),
    st.sampled_from(["policy_gradient", "gspo", "cispo"]),
    st.sampled_from([{"kl_k1": 0.1}, {"kl_k3": 0.1}, {}]),
)
def test_any_logprobs_give_a_finite_loss_and_gradient(
    tokens: list[tuple[float, ...]], name: str, kl: dict[str, float]
) -> None:
    current, sampler, reference, advantages = torch.tensor(tokens, dtype=torch.float32).unbind(1)
    carried = replace(inputs(sampler, advantages, [len(tokens)]), reference_logprobs=reference)
    result, gradient = outcome(named(name, **CLIPS, **kl), current, carried)
    assert bool(torch.isfinite(gradient).all())
    assert math.isfinite(result.loss.item())


@given(
    st.lists(st.lists(st.tuples(*[st.floats(-5, 0, width=32)] * 2), min_size=1, max_size=4), min_size=2, max_size=4),
    st.sampled_from(["gspo", "cispo"]),
)
def test_rows_do_not_touch_each_other(rows: list[list[tuple[float, float]]], name: str) -> None:
    def of(chosen: list[list[tuple[float, float]]]) -> torch.Tensor:
        current, sampler = torch.tensor([token for row in chosen for token in row], dtype=torch.float64).unbind(1)
        carried: Inputs = inputs(sampler, torch.ones_like(sampler), list(map(len, chosen)))
        return outcome(named(name, **CLIPS), current, carried)[1]

    assert torch.equal(of(rows), torch.cat([of([row]) for row in rows]))


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        ({"kl_k3": -0.1}, r"kl_coef\n.*greater than or equal to 0"),
        ({"kl_coef": 0.1, "kl_estimator": "k2"}, r"kl_estimator\n.*'k1' or 'k3'"),
        ({"entropy_coef": math.nan}, r"entropy_coef\n.*greater than or equal to 0"),
        ({"dual_clip": 0.5}, "dual_clip must be 0 .* or above 1"),
        ({"name": "gspo", "dual_clip": 3.0}, "dual_clip and value_coef belong to form ppo, not to gspo"),
        ({"name": "cispo", "clip_low": 1.0}, r"clip_low\n.*less than 1"),
        ({"name": "cispo", "token_cap": 2.0, "token_floor": 0.5}, "off_policy=token needs"),
        ({"name": "cross_entropy", "kl_k3": 0.1}, r"kl_k3\n.*not permitted"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(loss: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        typed(**loss)


def test_a_loss_says_what_it_wants_computed() -> None:
    wants: list[Any] = [
        (loss.at_rollout_temperature, loss.needs_entropy_gradient, loss.needs_reference)
        for loss in (spec(**CLIPS), spec(entropy_coef=0.1), spec(kl_k1=0.1), CrossEntropyLoss())
    ]
    assert wants == [(True, False, False), (True, True, False), (True, False, True), (False, False, False)]
