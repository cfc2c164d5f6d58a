"""GRPO's variants, deviations and baselines, by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from fixtures.graded_groups import given as numbers
from fixtures.graded_groups import graded_group
from fixtures.typed_losses import typed
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.algorithms.credit import assign_credit, batch_credit
from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_cli.contracts import Optimizer
from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.types import KlPenalty, Loss, Status

REWARDS = st.lists(st.integers(-50, 50).map(lambda tenth: tenth / 10), min_size=2, max_size=7)


def grpo(**options: Any) -> Any:
    return registry().create("optimizer", "grpo", options)


def spec(name: str, low: float, high: float, normalization: Any, length: float = 0.0, **more: float) -> Loss:
    parameters = {"clip_low": low, "clip_high": high, **more}
    return typed(name, **parameters, normalization=normalization, normalization_length=length)


def test_without_options_the_loss_is_what_it_was_before_there_were_variants() -> None:
    before = PolicyGradientLoss(clip_low=0.2, clip_high=0.2)
    assert grpo().loss() == before
    assert grpo().kl_penalty() is None
    groups = [graded_group(1, 0, 0, 0), graded_group(1, 1)]
    credits = assign_credit(grpo(), groups)
    assert batch_credit(grpo(), groups, credits) == credits
    assert credits[0].advantages == (0.75, -0.25, -0.25, -0.25)


@pytest.mark.parametrize(
    ("variant", "loss", "by_std"),
    [
        ("grpo", spec("policy_gradient", 0.2, 0.2, "sequence"), True),
        ("dapo", spec("policy_gradient", 0.2, 0.28, "token"), True),
        ("dr_grpo", spec("policy_gradient", 0.2, 0.2, "constant", 512), False),
        ("gspo", spec("gspo", 3e-4, 4e-4, "sequence"), True),
        ("cispo", spec("cispo", 0.0, 4.0, "token"), True),
    ],
)
def test_a_variant_is_what_its_paper_says(variant: str, loss: Loss, by_std: bool) -> None:
    optimizer = grpo(variant=variant)
    assert optimizer.loss() == loss
    scale = math.sqrt(3 / 16) + 1e-8 if by_std else 1.0
    assert optimizer.credit(graded_group(1, 0, 0, 0)).advantages == pytest.approx([0.75 / scale] + [-0.25 / scale] * 3)


def test_explicit_options_override_what_a_variant_leaves_open() -> None:
    options = {"clip_high": 0.3, "normalize_std": "none", "kl": "loss", "kl_coef": 0.04, "entropy_coef": 0.002}
    optimizer = grpo(variant="grpo", dual_clip=3.0, **options)
    more = {"dual_clip": 3.0, "kl_k3": 0.04, "entropy_coef": 0.002}
    assert optimizer.loss() == spec("policy_gradient", 0.2, 0.3, "sequence", **more)
    assert optimizer.credit(graded_group(1, 0)).advantages == (0.5, -0.5)
    assert grpo(variant="dr_grpo", normalization_length=4096).loss().normalization_length == 4096
    assert grpo(variant="gspo", ratio="sequence").loss().form == "gspo"
    assert grpo(ratio="sequence", clip_low=3e-4).loss() == spec("gspo", 3e-4, 0.2, "trained")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"variant": "dr_grpo", "normalize_std": "group"}, "normalize_std=group contradicts variant=dr_grpo"),
        ({"variant": "dr_grpo", "normalization": "sequence"}, "normalization=sequence contradicts variant=dr_grpo"),
        ({"variant": "dapo", "normalization": "sequence"}, "which has token"),
        ({"variant": "gspo", "ratio": "token"}, "ratio=token contradicts variant=gspo, which has sequence"),
        ({"variant": "cispo", "ratio": "sequence"}, "contradicts variant=cispo"),
        ({"variant": "cispo", "dual_clip": 3}, "dual_clip=3.0 contradicts variant=cispo"),
        ({"ratio": "sequence", "dual_clip": 3}, "dual_clip bounds ratios of tokens"),
        ({"dual_clip": 0.9}, "dual_clip must be 0 or above 1"),
        ({"kl_coef": 0.1}, "kl_coef has no effect without kl=reward or kl=loss"),
        ({"kl_estimator": "k1"}, "kl_estimator has no effect"),
        ({"normalization_length": 100}, "normalization_length has no effect"),
        ({"variant": "ppo"}, "variant"),
        ({"kl": "loss", "kl_coef": 0}, "kl_coef"),
        ({"entropy_coef": -0.1}, "entropy_coef"),
    ],
)
def test_options_that_contradict_each_other_are_errors(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        grpo(**options)


def test_kl_can_be_switched_off_over_a_file_that_sets_its_coefficient() -> None:
    assert grpo(kl="off", kl_coef=0.1, kl_estimator="k1").loss() == grpo().loss()


def test_kl_is_in_the_reward_or_in_the_loss() -> None:
    in_reward = grpo(kl="reward", kl_coef=0.1)
    assert in_reward.kl_penalty() == KlPenalty(coefficient=0.1, estimator="k1")
    assert in_reward.loss() == grpo().loss()
    assert grpo(kl="reward", kl_estimator="k3").kl_penalty() == KlPenalty(coefficient=0.05, estimator="k3")
    in_loss = grpo(kl="loss", kl_estimator="k1")
    assert in_loss.kl_penalty() is None
    assert (in_loss.loss().kl_coef, in_loss.loss().kl_estimator) == (0.05, "k1")


def test_a_median_baseline_by_hand() -> None:
    assert grpo(baseline="median").credit(graded_group(1, 0, 0)).advantages == (1, 0, 0)
    assert grpo(baseline="median").credit(graded_group(1, 0.5, 0, 0)).advantages == (0.75, 0.25, -0.25, -0.25)


def test_deviations_of_group_and_batch_by_hand() -> None:
    """Deviations 0.5 and 1 of the groups (1, 0) and (2, 0); all four rewards deviate by sqrt(11)/4 from 3/4."""
    groups = [graded_group(1, 0), graded_group(2, 0), graded_group(1, 1), graded_group(7, Status.ENGINE_ERROR)]
    by_group = grpo(normalize_std="group")
    assert numbers(assign_credit(by_group, groups)[1].advantages) == pytest.approx([1, -1])
    by_batch = grpo(normalize_std="batch")
    judged = assign_credit(by_batch, groups)
    assert numbers(judged[1].advantages) == [1, -1]
    credits = batch_credit(by_batch, groups, judged)
    deviation = math.sqrt(11) / 4
    assert numbers(credits[0].advantages) == pytest.approx([0.5 / deviation, -0.5 / deviation])
    assert numbers(credits[1].advantages) == pytest.approx([1 / deviation, -1 / deviation])
    assert [credit.dropped for credit in credits] == ["", "", "zero_variance", "too_few"]
    assert credits[2:] == judged[2:]


def test_true_and_false_still_name_the_deviation() -> None:
    members = graded_group(1, 0, 0.5)
    for old, new in ((True, "group"), (False, "none")):
        assert grpo(normalize_std=old).credit(members) == grpo(normalize_std=new).credit(members)


def test_components_fulfil_the_contracts() -> None:
    for name in ("grpo", "rloo", "reinforce"):
        optimizer = registry().create("optimizer", name, {})
        assert isinstance(optimizer, Optimizer)
        assert optimizer.estimation() is None and optimizer.passes() is None


@given(
    rewards=st.lists(REWARDS, min_size=1, max_size=4),
    std=st.sampled_from(["none", "group", "batch"]),
    baseline=st.sampled_from(["mean", "median"]),
    shift=st.floats(-3, 3),
    scale=st.floats(0.5, 4),
    seed=st.integers(0, 9),
)
def test_shifts_never_matter_scales_only_without_a_deviation_and_order_never(
    rewards: list[list[float]], std: str, baseline: str, shift: float, scale: float, seed: int
) -> None:
    optimizer = grpo(normalize_std=std, baseline=baseline)

    def advantages(batch: list[list[float]]) -> list[list[float]]:
        groups = [graded_group(*members) for members in batch]
        credits = batch_credit(optimizer, groups, assign_credit(optimizer, groups))
        return [numbers(credit.advantages) for credit in credits]

    plain = advantages(rewards)
    shifted = advantages([[reward + shift for reward in members] for members in rewards])
    scaled = advantages([[reward * scale for reward in members] for members in rewards])
    factor = scale if std == "none" else 1.0
    orders = [random.Random(seed).sample(range(len(members)), len(members)) for members in rewards]
    shuffled = advantages([[members[at] for at in order] for members, order in zip(rewards, orders, strict=True)])
    for place, order in enumerate(orders):
        assert shifted[place] == pytest.approx(plain[place], abs=1e-5)
        assert scaled[place] == pytest.approx([factor * value for value in plain[place]], abs=1e-5)
        assert shuffled[place] == [plain[place][at] for at in order]
        if baseline == "mean":
            assert math.fsum(plain[place]) == pytest.approx(0, abs=1e-6)
