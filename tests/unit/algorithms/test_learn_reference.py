"""Reference log-probabilities: which samples they are computed for, and what they take from rewards."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from fixtures.graded_groups import graded_group

from finqa_cli.algorithms.credit import assign_credit, batch_credit, credited_samples, final_credit
from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_cli.algorithms.penalties import penalize_kl, rows_by_trajectory, scored_samples
from finqa_cli.errors import FinqaError
from finqa_cli.extend import registry
from finqa_cli.types import Credit, Group, KlPenalty, Loss, Status, Turn

TURNS = (
    Turn(prompt_ids=(1, 2), completion_ids=(3, 4), logprobs=(-1.0, -2.0)),
    Turn(prompt_ids=(5,), completion_ids=(6,), logprobs=(-0.5,)),
)
FORKED = (TURNS[0], replace(TURNS[1], restarts=True))
ROW = (0.0, 0.0, -1.5, -1.0, 0.0, -0.75)
GRPO = registry().create("optimizer", "grpo", {})


def test_references_are_wanted_for_scored_members_of_groups_that_are_trained_on() -> None:
    groups = [
        graded_group(1, 0, 0.5, Status.ENGINE_ERROR, turns=TURNS),
        graded_group(1, 1, task="same", turns=TURNS),
    ]
    samples = scored_samples(groups, assign_credit(GRPO, groups))
    assert list(samples) == ["train/q1/0", "train/q1/1", "train/q1/2"]
    assert all(not sample.advantages.any() for each in samples.values() for sample in each)
    rows = rows_by_trajectory(samples, [ROW, ROW[:1], ()])
    assert rows == {"train/q1/0": (ROW,), "train/q1/1": (ROW[:1],), "train/q1/2": ((),)}


def test_a_forked_episode_has_a_row_for_each_sequence() -> None:
    groups = [graded_group(1, 0, turns=FORKED)]
    samples = scored_samples(groups, assign_credit(GRPO, groups))
    assert [len(each) for each in samples.values()] == [2, 2]
    assert rows_by_trajectory(samples, [(1.0,), (2.0,), (3.0,), (4.0,)])["train/q1/1"] == ((3.0,), (4.0,))


def test_the_penalty_by_hand() -> None:
    """Sampler -1, -2, -0.5 and reference -1.5, -1, -0.75: log ratios 0.5, -1, 0.25."""
    groups = [graded_group(1, 0, Status.ENGINE_ERROR, turns=TURNS)]
    rows = {f"train/q1/{place}": (ROW,) for place in range(3)}
    k1 = penalize_kl(groups, rows, KlPenalty(coefficient=0.1, estimator="k1"))
    assert [one.reward for one in k1[0].trajectories] == [pytest.approx(1.025), pytest.approx(0.025), None]
    expected = sum(math.exp(-ratio) - 1 + ratio for ratio in (0.5, -1, 0.25))
    k3 = penalize_kl(groups, rows, KlPenalty(coefficient=0.1, estimator="k3"))
    assert [one.reward for one in k3[0].trajectories][:2] == pytest.approx([1 - 0.1 * expected, -0.1 * expected])
    assert [one.reward for one in groups[0].trajectories] == [1, 0, None], "the record keeps what was graded"


def test_a_forked_episode_pays_for_each_sampled_token_once() -> None:
    penalty = KlPenalty(coefficient=1.0, estimator="k1")
    whole = penalize_kl([graded_group(0, turns=TURNS)], {"train/q1/0": (ROW,)}, penalty)
    forked = penalize_kl([graded_group(0, turns=FORKED)], {"train/q1/0": (ROW[:4], ROW[4:])}, penalty)
    assert whole[0].trajectories[0].reward == forked[0].trajectories[0].reward == pytest.approx(0.25)


def test_trajectories_without_a_reference_keep_their_reward() -> None:
    groups = (graded_group(1, 0, turns=TURNS),)
    assert penalize_kl(groups, {}, KlPenalty(coefficient=1.0, estimator="k1")) == groups


def test_groups_that_were_dropped_stay_dropped_when_rewards_change_and_the_others_get_credit_once() -> None:
    before = [graded_group(1, 1), graded_group(1, 0)]
    admitted = assign_credit(GRPO, before)
    asked: list[Group] = []

    class Counting:
        def credit(self, group: Group) -> Credit:
            asked.append(group)
            return GRPO.credit(group)

        def batch_credit(self, groups: Any, credits: Any) -> Any:
            return GRPO.batch_credit(groups, credits)

    after = [graded_group(1, 0), graded_group(0.8, 0.2)]
    changes = (lambda groups: [graded_group(0, 1), groups[1]], lambda groups: after)
    groups, credits = final_credit(Counting(), before, admitted, changes)  # type: ignore[arg-type]
    assert groups == after and asked == [after[1]]
    assert credits[0].dropped and credits[1].advantages == pytest.approx((0.3, -0.3))
    asked.clear()
    assert final_credit(Counting(), before, admitted, ()) == (before, GRPO.batch_credit(before, admitted))  # type: ignore[arg-type]
    assert not asked, "the credit of admission is that of the same rewards"


def test_samples_carry_their_reference_and_neutral_members_when_wanted() -> None:
    groups = [graded_group(1, 0.5, 0, Status.ENGINE_ERROR, turns=TURNS)]
    credits = assign_credit(GRPO, groups)
    rows = {f"train/q1/{place}": ((0.0, 0.0, -1.0 * place, 0.0, 0.0, 0.0),) for place in range(3)}
    samples = credited_samples(groups, credits, neutral=True, references=rows)
    assert [sample.reference_logprobs[2] for sample in samples] == [0, -1, -2]
    assert [sample.advantages[2] for sample in samples] == [0.5, 0, -0.5]
    assert [sample.episode for sample in samples] == ["train/q1/0", "train/q1/1", "train/q1/2"]
    assert len(credited_samples(groups, credits)) == 2


def test_an_optimizer_that_loses_a_group_is_named() -> None:
    class Forgetful:
        def credit(self, group: Group) -> Credit:
            return Credit(advantages=(1.0, 0.0))

        def batch_credit(self, groups: Any, credits: Any) -> Any:
            return credits[1:]

        def loss(self) -> Loss:
            return PolicyGradientLoss()

    groups = [graded_group(1, 0), graded_group(1, 0)]
    with pytest.raises(FinqaError, match="Forgetful gave 1 credits for 2 groups"):
        batch_credit(Forgetful(), groups, assign_credit(Forgetful(), groups))
