from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.algorithms.credit import assign_credit, credited_samples
from finqa_cli.algorithms.group_report import group_statistics, length_bias
from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_cli.algorithms.packing import pack
from finqa_cli.errors import FinqaError
from finqa_cli.types import Credit, Group, Loss, Rewards, Status, Task, Trajectory, Turn
from finqa_plugins.optimizers.grpo import Grpo, GrpoConfig

GRPO = Grpo(GrpoConfig())


def group(*rewards: float | None, task: str = "q1") -> Group:
    """None is a fault; the tokens of member m are (1, 10 + m)."""
    about = Task(id=task, prompt="?", split="train", cluster="ACME")
    trajectories = tuple(
        Trajectory(
            id=f"train/{task}/{member}",
            task=about,
            member=member,
            seed=member,
            status=Status.SANDBOX_ERROR if reward is None else Status.COMPLETED,
            turns=(Turn(prompt_ids=(1,), completion_ids=(10 + member,), logprobs=(-1.0,)),),
            rewards=None if reward is None else Rewards(total=reward),
        )
        for member, reward in enumerate(rewards)
    )
    return Group(task=about, trajectories=trajectories)


def test_statistics_name_every_fate() -> None:
    groups = [group(0, 1, None), group(0, 0), group(1, 1), group(0.5, 0.5), group(1, None), group(0, 0.5, 1)]
    statistics = group_statistics(groups, assign_credit(GRPO, groups))
    assert statistics.as_metrics() == {
        "groups": 6,
        "informative": 2,
        "zero_variance_all_0": 1,
        "zero_variance_all_1": 1,
        "zero_variance_other": 1,
        "over_age": 0,
        "too_few": 1,
        "dropped_other": 0,
        "episodes": 14,
        "faults": 2,
        "episodes_in_groups": 12,
        "episodes_trained": 4,
        "reward_mean": pytest.approx(6.5 / 12),
        "reward_std": pytest.approx(math.sqrt(5.75 / 12 - (6.5 / 12) ** 2)),
        "length_bias": 0.0,
    }


def test_statistics_of_nothing() -> None:
    assert group_statistics([], []).reward_mean == 0.0
    assert length_bias([]) == length_bias([group(None, None)]) == 0.0


def test_faults_that_take_the_long_episodes_show_as_length_bias() -> None:
    """Three turns each, and the faulted one nine: those that are left are 3 turns long where 5 were the mean."""
    whole = group(1, 0, None)
    lengths = [3, 3, 9]
    members = tuple(
        replace(member, turns=member.turns * length, seconds=10.0 * length)
        for member, length in zip(whole.trajectories, lengths, strict=True)
    )
    faulted = [replace(whole, trajectories=members)]
    assert length_bias(faulted) == pytest.approx(3 / 5 - 1)
    assert length_bias(faulted, lambda trajectory: trajectory.seconds) == pytest.approx(3 / 5 - 1)
    assert group_statistics(faulted, assign_credit(GRPO, faulted)).length_bias == pytest.approx(-0.4)


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 0.5, None]), min_size=1, max_size=6), max_size=6))
def test_no_episode_and_no_group_is_lost_in_the_counts(rewards: list[list[float | None]]) -> None:
    groups = [group(*members) for members in rewards]
    credits = assign_credit(GRPO, groups)
    counts = group_statistics(groups, credits)
    fates = (
        counts.informative,
        counts.zero_variance_all_0,
        counts.zero_variance_all_1,
        counts.zero_variance_other,
        counts.too_few,
        counts.dropped_other,
    )
    assert sum(fates) == counts.groups
    assert counts.episodes == counts.faults + counts.episodes_in_groups
    assert len(credited_samples(groups, credits)) == counts.episodes_trained


def test_only_members_that_can_change_the_policy_become_samples() -> None:
    groups = [group(0, 0.5, None, 1), group(1, 1), group(1, 0, task="q2")]
    samples = credited_samples(groups, assign_credit(GRPO, groups))
    assert [entry.token_ids[1] for entry in samples] == [10, 13, 10, 11]
    assert [entry.advantages[1] for entry in samples] == [-0.5, 0.5, 0.5, -0.5]


def test_a_forked_member_gives_a_sample_for_each_sequence_and_keeps_its_weight() -> None:
    whole = group(1, 0)
    later = Turn(prompt_ids=(1, 10, 5), completion_ids=(6, 7), logprobs=(-1.0, -2.0))
    turns = {restarts: replace(later, restarts=restarts) for restarts in (True, False)}
    forked, unforked = (
        [replace(whole, trajectories=(replace(first, turns=(*first.turns, turns[restarts])), second))]
        for first, second in [whole.trajectories]
        for restarts in (True, False)
    )
    samples, plain = (credited_samples(one, assign_credit(GRPO, one)) for one in (forked, unforked))
    assert [len(samples), len(plain)] == [3, 2]
    assert (
        pack(samples, token_budget=99, max_rows=9).loss_tokens == pack(plain, token_budget=99, max_rows=9).loss_tokens
    )
    assert math.fsum(map(math.fsum, (one.advantages for one in samples))) == math.fsum(
        map(math.fsum, (one.advantages for one in plain))
    )


def test_an_optimizer_that_miscounts_is_named() -> None:
    class Miscounting:
        def credit(self, group: Group) -> Credit:
            return Credit(advantages=(1.0,))

        def loss(self) -> Loss:
            return PolicyGradientLoss()

    with pytest.raises(FinqaError, match="Miscounting gave 1 advantages for the 2 attempts at task 'q1'"):
        assign_credit(Miscounting(), [group(0, 1)])
