"""The losses by themselves: from log-probabilities to loss, gradient and metrics."""

from __future__ import annotations

import math

import pytest
import torch
from fixtures.token_losses import inputs, outcome, spec, tensor
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import ConfigError
from finqa_plugins.torch_learner.forward import Inputs
from finqa_plugins.torch_learner.losses import TokenLoss, build_loss

# --- closed forms


def test_token_weights_are_truncated_one_by_one() -> None:
    """w = 0.5, 1.5, min(4, 2): the gradient of -w A logp, and shares of what was truncated."""
    ratios = tensor(0.5, 1.5, 4.0)
    current, advantages = tensor(-1.0, -2.0, -3.0), tensor(1.0, -1.0, 0.5)
    result, gradient = outcome(spec(token_cap=2.0), current, inputs(current - ratios.log(), advantages, [3]))
    torch.testing.assert_close(gradient, -tensor(0.5, 1.5, 2.0) * advantages)
    assert float(result.sums["importance_weight_mean"]) == pytest.approx(4.0)
    assert float(result.sums["importance_truncated"]) == 1
    assert float(result.sums["ratio_mean"]) == pytest.approx(3.0)
    assert result.sequence_sums == {}


def test_sequence_weights_are_products_and_0_above_the_cap() -> None:
    """Products 0.5 x 3 = 1.5 (kept, though a token alone is above the cap), 2 x 1.5 = 3 (masked) and 0.25 (kept)."""
    ratios = tensor(0.5, 3.0, 2.0, 1.5, 0.25)
    current, advantages = tensor(-1.0, -2.0, -3.0, -0.5, -0.1), tensor(1.0, 1.0, -1.0, -1.0, 2.0)
    carried = inputs(current - ratios.log(), advantages, [2, 2, 1])
    result, gradient = outcome(spec(sequence_cap=2.0), current, carried)
    torch.testing.assert_close(gradient, -tensor(1.5, 1.5, 0.0, 0.0, 0.25) * advantages)
    assert gradient[2:4].tolist() == [0.0, 0.0]
    assert float(result.sequence_sums["sequences_masked"]) == 1
    assert float(result.sums["importance_weight_mean"]) == pytest.approx(3.25)
    assert "importance_truncated" not in result.sums


def test_equal_policies_are_neither_truncated_nor_masked_at_the_smallest_cap() -> None:
    current = tensor(-1.0, -2.0)
    token, _ = outcome(spec(token_cap=1.0), current, inputs(current, tensor(1, 1), [2]))
    sequence, _ = outcome(spec(sequence_cap=1.0), current, inputs(current, tensor(1, 1), [2]))
    assert float(token.sums["importance_truncated"]) == float(sequence.sequence_sums["sequences_masked"]) == 0


@pytest.mark.parametrize("caps", [{"token_cap": 2.0}, {"sequence_cap": 2.0}])
def test_the_clip_is_around_the_proximal_policy(caps: dict[str, float]) -> None:
    """r = 1.3 and 1.1 to the proximal policy; to the sampler all ratios are far outside the clip."""
    proximal, ratio, weight = tensor(-2.0, -2.0), tensor(1.3, 1.1), 0.3
    sampler = proximal - math.log(weight) / (2 if "sequence_cap" in caps else 1)
    carried = inputs(sampler, tensor(1.0, 1.0), [2], proximal)
    result, gradient = outcome(spec(clip_low=0.2, clip_high=0.2, **caps), proximal + ratio.log(), carried)
    torch.testing.assert_close(gradient, tensor(0.0, -weight * 1.1))
    assert result.loss.item() == pytest.approx(-weight * (1.2 + 1.1))
    assert float(result.sums["clip_fraction"]) == 1
    assert float(result.sums["ratio_mean"]) == pytest.approx(2.4)


def test_mismatch_is_always_between_sampler_and_current_policy() -> None:
    current, proximal, sampler = tensor(-1.0, -1.5), tensor(-1.2, -1.4), tensor(-1.6, -1.1)
    plain, _ = outcome(spec(), current, inputs(sampler, tensor(1, -1), [2]))
    for caps in ({"token_cap": 2.0}, {"sequence_cap": 2.0}):
        decoupled, _ = outcome(spec(**caps), current, inputs(sampler, tensor(1, -1), [2], proximal))
        for name in ("kl", "logprob_difference_mean"):
            assert torch.equal(decoupled.sums[name], plain.sums[name])
        assert decoupled.maxima["logprob_difference_max"] == plain.maxima["logprob_difference_max"]


@pytest.mark.parametrize("caps", [{"token_cap": 2.0}, {"sequence_cap": 2.0}])
def test_where_all_policies_agree_the_gradient_is_that_of_ppo(caps: dict[str, float]) -> None:
    current, advantages = tensor(-1.0, -2.0, -0.3), tensor(0.5, -0.25, 1.0)
    clip = {"clip_low": 0.2, "clip_high": 0.2}
    _, plain = outcome(spec(**clip), current, inputs(current, advantages, [1, 2]))
    for proximal in (None, current):
        _, decoupled = outcome(spec(**clip, **caps), current, inputs(current, advantages, [1, 2], proximal))
        torch.testing.assert_close(decoupled, plain, rtol=1e-12, atol=0)


# --- without caps nothing has changed


def frozen_policy_gradient(logprobs: torch.Tensor, carried: Inputs, low: float, high: float) -> TokenLoss:
    """The loss as it was before there were caps. Frozen: runs without staleness are promised to stay the same bits."""
    difference = logprobs - carried.old_logprobs
    ratio = difference.clamp(-20.0, 20.0).exp()
    clipped = ratio.clamp(1.0 - low if low else None, 1.0 + high if high else None) if low or high else ratio
    plain = ratio * carried.advantages
    objective = torch.minimum(plain, clipped * carried.advantages)
    with torch.no_grad():
        apart = difference.abs()
        sums = {
            "logprob_difference_mean": apart.sum(),
            "ratio_mean": ratio.sum(),
            "clip_fraction": (objective < plain).sum(),
            "kl": (ratio - 1.0 - difference).sum(),
        }
        maxima = {"logprob_difference_max": apart.max()} if apart.numel() else {}
    return TokenLoss(loss=-objective.sum(), sums=sums, maxima=maxima)


LOGPROB = st.floats(-40, 0, width=32)
TOKEN = st.tuples(LOGPROB, LOGPROB, st.floats(-2, 2, width=32))


@given(st.lists(TOKEN, min_size=1, max_size=40), st.sampled_from([0.0, 0.2]), st.sampled_from([0.0, 0.28]))
def test_without_caps_the_loss_is_the_same_bits(
    tokens: list[tuple[float, float, float]], low: float, high: float
) -> None:
    current, sampler, advantages = torch.tensor(tokens, dtype=torch.float32).unbind(1)
    carried = inputs(sampler, advantages, [len(tokens)])
    result, gradient = outcome(spec(clip_low=low, clip_high=high), current, carried)
    leaf = current.clone().requires_grad_()
    frozen = frozen_policy_gradient(leaf, carried, low, high)
    frozen.loss.backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert torch.equal(gradient, leaf.grad)
    assert torch.equal(result.loss, frozen.loss)
    assert {name: float(value) for name, value in result.sums.items()} == {
        name: float(value) for name, value in frozen.sums.items()
    }
    assert result.maxima == frozen.maxima
    assert result.sequence_sums == {}


# --- properties

EXTREME = st.one_of(st.floats(-40, 0, width=32), st.sampled_from([0.0, -1e-30, -88.0, -1e4, -3e38, -math.inf]))
ROW = st.lists(st.tuples(EXTREME, st.floats(-1e4, 0, width=32), st.floats(-1e4, 0, width=32)), min_size=1, max_size=6)
CAPS = st.sampled_from([{"token_cap": 1.0}, {"token_cap": 2.0}, {"sequence_cap": 1.0}, {"sequence_cap": 1e30}])


@given(st.lists(ROW, min_size=1, max_size=5), CAPS, st.booleans(), st.sampled_from([-1.0, 0.5]))
def test_any_ratio_gives_a_finite_loss_and_gradient(
    rows: list[list[tuple[float, float, float]]], caps: dict[str, float], several_steps: bool, advantage: float
) -> None:
    tokens = [token for row in rows for token in row]
    sampler, proximal, current = torch.tensor(tokens, dtype=torch.float32).unbind(1)
    advantages = torch.full_like(sampler, advantage)
    carried = inputs(sampler, advantages, list(map(len, rows)), proximal if several_steps else None)
    result, gradient = outcome(spec(clip_low=0.2, clip_high=0.2, **caps), current, carried)
    assert bool(torch.isfinite(gradient).all())
    assert math.isfinite(result.loss.item())
    weight = float(result.sums["importance_weight_mean"]) / len(tokens)
    assert 0 <= weight <= min(next(iter(caps.values())), math.exp(20)) * (1 + 1e-6)
    shares = {"importance_truncated": len(tokens), "clip_fraction": len(tokens), "sequences_masked": len(rows)}
    for name, value in {**result.sums, **result.sequence_sums}.items():
        assert name not in shares or 0 <= float(value) <= shares[name]


@given(st.lists(ROW, min_size=2, max_size=5), CAPS, st.booleans())
def test_rows_do_not_touch_each_other(
    rows: list[list[tuple[float, float, float]]], caps: dict[str, float], several_steps: bool
) -> None:
    """The gradient of a micro-batch is that of its rows one by one."""

    def of(chosen: list[list[tuple[float, float, float]]]) -> torch.Tensor:
        sampler, proximal, current = torch.tensor(
            [token for row in chosen for token in row], dtype=torch.float64
        ).unbind(1)
        carried = inputs(sampler, torch.ones_like(sampler), list(map(len, chosen)), proximal if several_steps else None)
        return outcome(spec(clip_low=0.2, clip_high=0.2, **caps), current, carried)[1]

    assert torch.equal(of(rows), torch.cat([of([row]) for row in rows]))


# --- what is refused


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"token_cap": 2.0, "sequence_cap": 2.0}, "only one may be above 0"),
        ({"token_cap": 0.5}, "token_cap must be 0 .* or at least 1, not 0.5"),
        ({"sequence_cap": -1.0}, "sequence_cap must be 0"),
        ({"token_cap": math.nan}, "token_cap must be 0"),
    ],
)
def test_caps_that_make_no_sense_are_config_errors(parameters: dict[str, float], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        build_loss(spec(**parameters))


def test_a_cap_of_0_is_no_cap() -> None:
    carried = inputs(tensor(-1.0), tensor(1.0), [1])
    off, _ = outcome(spec(token_cap=0.0, sequence_cap=0.0), tensor(-2.0), carried)
    assert "importance_weight_mean" not in off.sums
