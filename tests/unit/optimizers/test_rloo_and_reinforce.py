from __future__ import annotations

import math
from typing import Any

import pytest
from fixtures.graded_groups import given as numbers
from fixtures.graded_groups import graded_group
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.algorithms.credit import assign_credit, batch_credit
from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.extend import registry
from finqa_cli.types import KlPenalty, Status

REWARDS = st.lists(st.integers(-50, 50).map(lambda tenth: tenth / 10), min_size=2, max_size=7)


def make(name: str, **options: Any) -> Any:
    return registry().create("optimizer", name, options)


def test_leave_one_out_by_hand() -> None:
    """Rewards 1, 0, 0.5 less the means 0.25, 0.75 and 0.5 of the two others; the fault is none of them."""
    credit = make("rloo").credit(graded_group(1, 0, Status.SANDBOX_ERROR, 0.5))
    assert credit.advantages == (0.75, -0.75, None, 0.0)
    assert make("rloo", baseline="mean").credit(graded_group(1, 0, 0.5)).advantages == (0.5, -0.5, 0.0)


def test_groups_without_signal_are_dropped() -> None:
    assert make("rloo").credit(graded_group(1, 1, 1)).dropped == "zero_variance"
    assert make("rloo").credit(graded_group(1, Status.ENGINE_ERROR)).dropped == "too_few"
    assert make("rloo", minimum_members=3).credit(graded_group(1, 0)).dropped == "too_few"


@given(REWARDS)
def test_leave_one_out_is_the_definition_and_k_over_k_less_1_times_centred(rewards: list[float]) -> None:
    credit = make("rloo").credit(graded_group(*rewards))
    if credit.dropped:
        return
    members = len(rewards)
    others = [math.fsum(rewards[:place] + rewards[place + 1 :]) / (members - 1) for place in range(members)]
    defined = [reward - other for reward, other in zip(rewards, others, strict=True)]
    centred = make("grpo").credit(graded_group(*rewards)).advantages
    assert credit.advantages == pytest.approx(defined, abs=1e-9)
    assert credit.advantages == pytest.approx([members / (members - 1) * value for value in centred], abs=1e-9)


@given(rewards=st.lists(REWARDS, min_size=1, max_size=3), shift=st.floats(-3, 3), scale=st.floats(0.5, 4))
def test_whitened_rewards_know_neither_shift_nor_scale(rewards: list[list[float]], shift: float, scale: float) -> None:
    rloo = make("rloo", whiten_rewards=True)

    def advantages(batch: list[list[float]]) -> list[list[float]]:
        groups = [graded_group(*members) for members in batch]
        return [numbers(credit.advantages) for credit in batch_credit(rloo, groups, assign_credit(rloo, groups))]

    moved = advantages([[scale * reward + shift for reward in members] for members in rewards])
    for one, other in zip(moved, advantages(rewards), strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_whitening_by_hand() -> None:
    """Whitened, the rewards 1, 0 and 2, 0 are (r - 3/4) / (sqrt(11)/4), and each has one other to be compared with."""
    rloo = make("rloo", whiten_rewards=True)
    groups = [graded_group(1, 0), graded_group(3, 3), graded_group(2, 0)]
    credits = batch_credit(rloo, groups, assign_credit(rloo, groups))
    deviation = math.sqrt(11) / 4
    assert numbers(credits[0].advantages) == pytest.approx([1 / deviation, -1 / deviation])
    assert numbers(credits[2].advantages) == pytest.approx([2 / deviation, -2 / deviation])
    assert credits[1].dropped == "zero_variance"


def test_losses_of_rloo() -> None:
    assert make("rloo").loss() == PolicyGradientLoss(clip_low=0.2, clip_high=0.2)
    published = make("rloo", normalization="constant", normalization_length=1, kl="reward")
    assert (published.loss().normalization, published.loss().normalization_length) == ("constant", 1)
    assert published.kl_penalty() == KlPenalty(coefficient=0.05, estimator="k1")
    assert make("rloo", kl="loss").loss() == PolicyGradientLoss(clip_low=0.2, clip_high=0.2, kl_coef=0.05)


def test_reinforce_by_hand() -> None:
    members = graded_group(1, 0, Status.ENGINE_ERROR, 0.5)
    assert make("reinforce").credit(members).advantages == (1, 0, None, 0.5)
    assert make("reinforce", baseline="group").credit(members).advantages == (0.5, -0.5, None, 0)
    optimizer = make("reinforce", baseline="batch")
    groups = [members, graded_group(1, 1), graded_group(Status.ENGINE_ERROR, Status.ENGINE_ERROR)]
    credits = batch_credit(optimizer, groups, assign_credit(optimizer, groups))
    assert credits[0].advantages == pytest.approx((0.3, -0.7, None, -0.2))
    assert credits[1].advantages == pytest.approx((0.3, 0.3))
    assert [credit.dropped for credit in credits] == ["", "", "too_few"]


def test_what_carries_no_signal_for_reinforce() -> None:
    plain, group = make("reinforce"), make("reinforce", baseline="group")
    assert plain.credit(graded_group(1, 1)).dropped == ""
    assert plain.credit(graded_group(0, 0, Status.ENGINE_ERROR)).dropped == "zero_variance"
    assert plain.credit(graded_group(0.5, Status.ENGINE_ERROR)).dropped == ""
    assert group.credit(graded_group(1, 1)).dropped == "zero_variance"
    assert group.credit(graded_group(1, Status.ENGINE_ERROR)).dropped == "too_few"
    assert make("reinforce", baseline="batch").credit(graded_group(0, 0)).dropped == ""
    with pytest.raises(FinqaError, match="not a finite number"):
        plain.credit(graded_group(math.nan))


def test_the_loss_of_reinforce_has_no_clip() -> None:
    assert make("reinforce").loss() == PolicyGradientLoss()


@pytest.mark.parametrize(
    ("name", "options"), [("rloo", {"variant": "dapo"}), ("reinforce", {"clip_low": 0.2}), ("rloo", {"kl_coef": 1})]
)
def test_what_they_have_not_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        make(name, **options)
