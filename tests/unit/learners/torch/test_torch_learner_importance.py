"""The losses by themselves: from log-probabilities to loss, gradient and metrics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from fixtures.token_losses import compute_loss, inputs, outcome, spec, tensor
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from finqa_cli.algorithms.losses import OffPolicy
from finqa_cli.training.rl.updates import correct_off_policy
from finqa_plugins.learners.torch.forward import Inputs
from finqa_plugins.learners.torch.step_metrics import TokenLoss
from finqa_plugins.optimizers.grpo import Grpo, GrpoConfig

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


def test_icepop_keeps_ratios_within_its_bounds_and_drops_the_others() -> None:
    """M(k) = k in [0.5, 5], else 0: 0.49 and 5.1 are dropped for both signs of the advantage."""
    ratios, advantages = tensor(0.49, 0.51, 1.5, 4.9, 5.1), tensor(1.0, -1.0, 0.5, 2.0, -2.0)
    current = tensor(-1.0, -2.0, -3.0, -0.5, -0.1)
    carried = inputs(current - ratios.log(), advantages, [3, 2])
    result, gradient = outcome(spec(icepop_floor=0.5, icepop_cap=5.0), current, carried)
    weights = tensor(0.0, 0.51, 1.5, 4.9, 0.0)
    torch.testing.assert_close(gradient, -weights * advantages, rtol=1e-12, atol=0)
    assert float(result.sums["tokens_masked"]) == 2
    assert float(result.sums["importance_weight_mean"]) == pytest.approx(6.91)
    assert result.sequence_sums == {}


def test_geometric_means_keep_or_drop_whole_sequences_whatever_their_length() -> None:
    """Means 1 of 4 and 1/4 (kept, far as they are), 1.02 of 2 and of 50 tokens (dropped), 0.98 (dropped)."""
    rows = [tensor(4.0, 0.25), tensor(1.02, 1.02), tensor(*[1.02] * 50), tensor(0.98), tensor(1.005, 0.999)]
    ratios, lengths = torch.cat(rows), [len(row) for row in rows]
    current, advantages = torch.full_like(ratios, -1.5), torch.linspace(-1, 1, len(ratios), dtype=torch.float64)
    carried = inputs(current - ratios.log(), advantages, lengths)
    result, gradient = outcome(spec(geometric_floor=0.99, geometric_cap=1.01), current, carried)
    kept = torch.cat([torch.full((length,), float(place in (0, 4))) for place, length in enumerate(lengths)]).double()
    torch.testing.assert_close(gradient, -kept * advantages, rtol=1e-12, atol=0)
    assert float(result.sequence_sums["sequences_masked"]) == 3
    assert float(result.sums["importance_weight_mean"]) == 4


@pytest.mark.parametrize(
    "caps", [{"icepop_floor": 0.5, "icepop_cap": 5.0}, {"geometric_floor": 0.99, "geometric_cap": 1.01}]
)
def test_masks_in_float32_are_their_closed_forms(caps: dict[str, float]) -> None:
    draw = torch.Generator().manual_seed(0)
    noise = 0.6 if "icepop_cap" in caps else 0.03
    lengths = [1, 7, 40, 500]
    current = -torch.rand(sum(lengths), generator=draw) * 4
    gaps = noise * torch.randn(len(current), generator=draw)
    advantages = torch.randn(len(current), generator=draw)
    _, gradient = outcome(spec(**caps), current, inputs(current - gaps, advantages, lengths))
    exact = (current.double() - (current - gaps).double()).split(lengths)
    if "icepop_cap" in caps:
        weights = [k if 0.5 <= k <= 5 else 0.0 for part in exact for k in map(math.exp, part.tolist())]
    else:
        means = [math.exp(math.fsum(part.tolist()) / len(part)) for part in exact]
        weights = [float(0.99 <= mean <= 1.01) for mean, n in zip(means, lengths, strict=True) for _ in range(n)]
    assert 0 < weights.count(0.0) < len(weights)
    torch.testing.assert_close(gradient, -torch.tensor(weights) * advantages, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [5, 50, 500])
@pytest.mark.parametrize("mode", ["auto", "none", "token", "sequence", "icepop", "geometric"])
def test_gspo_on_policy_does_not_clip_the_noise_of_the_sampler(length: int, mode: OffPolicy) -> None:
    """The published clips of 3e-4 and 4e-4 are a hundredth of what an engine in bfloat16 differs by."""
    gspo = Grpo(GrpoConfig(variant="gspo")).loss()
    assert gspo.clip_high == 4e-4
    loss = correct_off_policy(gspo, mode=mode, max_staleness=0)
    draw = torch.Generator().manual_seed(length)
    current = -torch.rand(40 * length, generator=draw) * 4
    sampler = current + 0.03 * torch.randn(len(current), generator=draw)
    advantages = (torch.arange(40) % 2 * 2.0 - 1.0).repeat_interleave(length)
    carried = inputs(sampler, advantages, [length] * 40)
    for proximal in (None, current):
        result, gradient = outcome(loss, current, replace(carried, proximal_logprobs=proximal))
        assert float(result.sums["clip_fraction"]) / len(current) < 0.01
        assert float(result.sums["ratio_mean"]) / len(current) == 1
        if mode in ("auto", "none", "token"):
            assert bool((gradient != 0).all()), "no token has lost its gradient"


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


# --- one step within clip and cap: what it was when the ratio was to the sampler


def frozen_policy_gradient(logprobs: torch.Tensor, carried: Inputs, low: float, high: float) -> TokenLoss:
    """The loss with its ratio to the sampler, as it was without staleness before the learner computed the anchor.

    Frozen: where neither clip nor cap acts, runs of one step per iteration are promised to stay the same bits.
    """
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


TOKEN = st.tuples(
    st.floats(-40, 0, width=32),
    st.floats(-0.125, 0.125, width=32),
    st.one_of(st.just(0.0), st.floats(1e-3, 2), st.floats(-2, -1e-3)),
)


@given(st.lists(TOKEN, min_size=1, max_size=40), st.sampled_from([0.0, 0.2]), st.sampled_from([0.0, 0.28]))
def test_a_step_within_clip_and_cap_has_the_same_bits_as_with_a_ratio_to_the_sampler(
    tokens: list[tuple[float, float, float]], low: float, high: float
) -> None:
    current, gaps, advantages = torch.tensor(tokens, dtype=torch.float32).unbind(1)
    carried = inputs(current - gaps, advantages, [len(tokens)])
    loss = correct_off_policy(spec(clip_low=low, clip_high=high), mode="auto", max_staleness=0)

    def stepped(function: Callable[[torch.Tensor], TokenLoss]) -> tuple[TokenLoss, torch.Tensor]:
        leaf = current.clone().requires_grad_()
        found = function(leaf)
        (found.loss / (3 * len(tokens))).backward()  # as a learner does, whose batch has more tokens
        assert leaf.grad is not None
        return found, leaf.grad

    result, gradient = stepped(lambda leaf: compute_loss(loss, leaf, torch.zeros_like(leaf), carried))
    frozen, expected = stepped(lambda leaf: frozen_policy_gradient(leaf, carried, low, high))
    assert torch.equal(gradient, expected)
    assert torch.equal(result.loss, frozen.loss)
    for name in ("logprob_difference_mean", "kl"):
        assert torch.equal(result.sums[name], frozen.sums[name])
    assert torch.equal(result.sums["importance_weight_mean"], frozen.sums["ratio_mean"])
    assert float(result.sums["importance_truncated"]) == float(frozen.sums["clip_fraction"]) == 0
    assert result.maxima == frozen.maxima
    assert result.sequence_sums == {}


# --- properties

EXTREME = st.one_of(st.floats(-40, 0, width=32), st.sampled_from([0.0, -1e-30, -88.0, -1e4, -3e38, -math.inf]))
ROW = st.lists(st.tuples(EXTREME, st.floats(-1e4, 0, width=32), st.floats(-1e4, 0, width=32)), min_size=1, max_size=6)
CAPS = st.sampled_from(
    [
        {"token_cap": 1.0},
        {"token_cap": 2.0},
        {"sequence_cap": 1.0},
        {"sequence_cap": 1e30},
        {"icepop_floor": 0.5, "icepop_cap": 5.0},
        {"geometric_floor": 0.99, "geometric_cap": 1.01},
    ]
)


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
    assert 0 <= weight <= min(max(caps.values()), math.exp(20)) * (1 + 1e-6)
    of_tokens = dict.fromkeys(("importance_truncated", "tokens_masked", "clip_fraction"), len(tokens))
    shares = {**of_tokens, "sequences_masked": len(rows)}
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
        ({"token_cap": 0.5}, "off_policy=token needs a cap of 1 or more.*they are 0.5 and 0.0"),
        ({"token_cap": 2.0, "token_floor": 0.5}, "off_policy=token needs"),
        ({"sequence_cap": -1.0}, r"off_policy_cap\n.*greater than or equal to 0"),
        ({"token_cap": math.nan}, r"off_policy_cap\n.*greater than or equal to 0"),
        ({"none_cap": 2.0}, "none neither; they are 2.0 and 0.0"),
        ({"icepop_cap": 5.0}, r"icepop and geometric a floor in \(0, 1\]"),
        ({"icepop_cap": 5.0, "icepop_floor": 1.5}, r"off_policy_floor\n.*less than or equal to 1"),
        ({"geometric_floor": 0.99}, "off_policy=geometric needs a cap"),
        ({"geometric_cap": 1.01, "geometric_floor": math.nan}, r"off_policy_floor\n"),
    ],
)
def test_caps_that_make_no_sense_are_refused(parameters: dict[str, float], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        spec(**parameters)


def test_without_a_correction_there_are_no_weights() -> None:
    carried = inputs(tensor(-1.0), tensor(1.0), [1])
    off, _ = outcome(spec(), tensor(-2.0), carried)
    assert "importance_weight_mean" not in off.sums
