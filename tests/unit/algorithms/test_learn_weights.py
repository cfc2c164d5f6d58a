"""`Rewards.weight`: a factor on the final advantage of an attempt, under every kind of method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from finqa_cli.algorithms.credit import assign_credit, attempt_weight, batch_credit, credited_samples
from finqa_cli.algorithms.gae import estimate_advantages
from finqa_cli.algorithms.group_report import group_statistics
from finqa_cli.algorithms.samples import attach_rows
from finqa_cli.contracts import Optimizer
from finqa_cli.errors import FinqaError
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.types import AdvantageEstimation, Group, Rewards, Sample, Status, Task, Trajectory, Turn
from finqa_plugins.optimizers.grpo import Grpo, GrpoConfig
from finqa_plugins.optimizers.ppo import Ppo, PpoConfig
from finqa_plugins.optimizers.reinforce import Reinforce, ReinforceConfig, Rloo, RlooConfig

METHODS: dict[str, Optimizer] = {
    "grpo": Grpo(GrpoConfig()),
    "grpo with group std": Grpo(GrpoConfig(normalize_std="group")),
    "grpo with batch std": Grpo(GrpoConfig(normalize_std="batch")),
    "dapo": Grpo(GrpoConfig(variant="dapo")),
    "rloo": Rloo(RlooConfig()),
    "whitened rloo": Rloo(RlooConfig(whiten_rewards=True)),
    "reinforce with the batch's mean": Reinforce(ReinforceConfig(baseline="batch")),
}


def group(task: str, weight: float, *rewards: float) -> Group:
    about = Task(id=task, prompt="?", split="train", cluster=task)
    members = tuple(
        Trajectory(
            id=f"{task}/{member}",
            task=about,
            member=member,
            seed=0,
            status=Status.COMPLETED,
            turns=(Turn(prompt_ids=(1,), completion_ids=(2, 3), logprobs=(-1.0, -1.0)),),
            rewards=Rewards(total=reward, weight=weight),
        )
        for member, reward in enumerate(rewards)
    )
    return Group(task=about, trajectories=members)


def groups(first: float = 1.0, second: float = 1.0) -> list[Group]:
    return [group("a", first, 0.0, 1.0, 0.2), group("b", second, 0.5, 0.0, 0.75)]


def advantages(optimizer: Optimizer, of: Sequence[Group]) -> list[float]:
    credits = batch_credit(optimizer, of, assign_credit(optimizer, of))
    return [sample.advantages[1] for sample in credited_samples(of, credits, neutral=True)]


@pytest.mark.parametrize("name", METHODS)
def test_a_weight_scales_the_advantages_of_its_group_and_of_no_other(name: str) -> None:
    plain, weighted = advantages(METHODS[name], groups()), advantages(METHODS[name], groups(0.25, 3.0))
    assert all(plain)
    assert weighted == pytest.approx([0.25 * each for each in plain[:3]] + [3.0 * each for each in plain[3:]])


@pytest.mark.parametrize("name", METHODS)
def test_a_weight_of_one_changes_no_bit(name: str) -> None:
    ungraded = [
        replace(each, trajectories=tuple(replace(member, rewards=None) for member in each.trajectories))
        for each in groups()
    ]
    assert [attempt_weight(member) for each in ungraded for member in each.trajectories] == [1.0] * 6
    samples = credited_samples(groups(), batch_credit(METHODS[name], groups(), assign_credit(METHODS[name], groups())))
    credits = batch_credit(METHODS[name], groups(), assign_credit(METHODS[name], groups()))
    assert [one.advantages[1] for one in samples] == [each for credit in credits for each in credit.advantages]


def test_attempts_without_weight_cost_no_forward_pass_and_are_not_counted_as_trained() -> None:
    of = groups(0.0, 2.0)
    credits = assign_credit(METHODS["grpo"], of)
    samples = credited_samples(of, credits)
    assert {one.episode[0] for one in samples} == {"b"}
    assert group_statistics(of, credits).episodes_trained == len(samples)


@pytest.mark.parametrize("weight", [-0.5, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(FinqaError, match="weight"):
        advantages(METHODS["grpo"], groups(weight))


@pytest.mark.parametrize("whiten", [False, True])
def test_estimated_advantages_are_weighted_after_whitening_and_returns_are_not(whiten: bool) -> None:
    of = groups()
    ppo = Ppo(PpoConfig())
    samples = credited_samples(of, assign_credit(ppo, of))
    valued = attach_rows(samples, values=[(0.0, 0.1, 0.3)] * len(samples))
    rewards = {member.id: member.reward or 0.0 for each in of for member in each.trajectories}
    estimation = AdvantageEstimation(gamma=1.0, lam=0.95, whiten=whiten)
    weights = {name: 0.5 if name.startswith("a") else 2.0 for name in rewards}

    def rows(found: Sequence[Sample], name: str) -> list[list[float]]:
        return [getattr(one, name).tolist() for one in found]

    plain, weighted = (
        estimate_advantages(valued, rewards, estimation),
        estimate_advantages(valued, rewards, estimation, weights=weights),
    )
    expected = [pytest.approx([weights[one.episode] * float(each) for each in one.advantages]) for one in plain]
    assert rows(weighted, "advantages") == expected
    assert rows(weighted, "returns") == rows(plain, "returns")
    assert all(any(row) for row in rows(plain, "advantages"))
    with pytest.raises(KeyError):
        estimate_advantages(valued, rewards, estimation, weights={})


def test_a_record_has_the_weight_where_there_is_one() -> None:
    assert trajectory_record(group("a", 0.25, 1.0).trajectories[0])["weight"] == 0.25
    assert "weight" not in trajectory_record(group("a", 1.0, 1.0).trajectories[0])
