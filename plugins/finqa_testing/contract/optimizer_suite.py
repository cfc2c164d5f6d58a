"""Contract of optimizers: advantages leave out faults, increase with the reward, and are reproducible.

The fixture `rewards` can be replaced for a method that needs other rewards than 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from finqa_cli.contracts import Optimizer, PreferenceOptimizer
from finqa_cli.types import Group, Loss, Rewards, Status, Task, Trajectory

TASK = Task(id="q", prompt="?", split="train", cluster="ACME")
FAULTS = (Status.SANDBOX_ERROR, Status.ENGINE_ERROR, Status.ENVIRONMENT_ERROR)


@pytest.fixture
def rewards() -> Sequence[float]:
    """Returns the rewards of a group of at least four members, which are not all equal."""
    return (1.0, 0.0, 0.0, 1.0, 0.25)


def group_of(*members: float | Status) -> Group:
    """Returns a group of attempts: for a number a graded one with this reward, for a status one that failed."""
    trajectories = tuple(
        Trajectory(
            id=f"train/q/{place}",
            task=TASK,
            member=place,
            seed=place,
            status=member if isinstance(member, Status) else Status.COMPLETED,
            turns=(),
            rewards=None if isinstance(member, Status) else Rewards(total=member),
        )
        for place, member in enumerate(members)
    )
    return Group(task=TASK, trajectories=trajectories)


@pytest.fixture
def plays(subject: Optimizer) -> Optimizer:
    """Returns the optimizer; skips the test if it does not learn from groups of episodes."""
    if isinstance(subject, PreferenceOptimizer):
        pytest.skip("it learns from recorded pairs")
    return subject


def test_it_has_a_typed_loss(subject: Optimizer) -> None:
    """The loss is one that learners know, or a new one that names its functions as `module:function`."""
    loss = subject.pair_loss() if isinstance(subject, PreferenceOptimizer) else subject.loss()
    assert isinstance(loss, Loss)
    assert all(":" in target for target in loss.functions.values()), loss.functions


def test_each_member_gets_a_finite_advantage(plays: Optimizer, rewards: Sequence[float]) -> None:
    """There is one advantage for each attempt, in the same order."""
    credit = plays.credit(group_of(*rewards))
    assert not credit.dropped and len(credit.advantages) == len(rewards)
    assert all(one is not None and math.isfinite(one) for one in credit.advantages)


def test_the_same_group_gets_the_same_credit(plays: Optimizer, rewards: Sequence[float]) -> None:
    """Advantages depend neither on state nor on random numbers."""
    assert plays.credit(group_of(*rewards)) == plays.credit(group_of(*rewards))


def test_a_better_member_never_gets_less(plays: Optimizer, rewards: Sequence[float]) -> None:
    """A higher reward never gives a lower advantage, unless values of the learner determine it."""
    if plays.estimation() is not None:
        pytest.skip("its advantages come from the learner's values")
    given = [one or 0.0 for one in plays.credit(group_of(*rewards)).advantages]
    ranked = [advantage for _, advantage in sorted(zip(rewards, given, strict=True))]
    assert ranked == sorted(ranked), f"rewards {tuple(rewards)} get the advantages {tuple(given)}"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_left_out_and_changes_nothing(plays: Optimizer, rewards: Sequence[float], fault: Status) -> None:
    """A fault, such as a sandbox that died, is not an attempt of the policy."""
    first, *others = rewards
    credit = plays.credit(group_of(first, fault, *others))
    assert credit.advantages[1] is None, f"an attempt that ended as {fault} gets {credit.advantages[1]}"
    assert (credit.advantages[0], *credit.advantages[2:]) == plays.credit(group_of(*rewards)).advantages


@pytest.mark.parametrize("members", [(0.5,), FAULTS, (1.0, FAULTS[0]), (0.5,) * 4, (1e12, -1e12), (0.1,) * 3 + (0.2,)])
def test_any_group_gets_finite_numbers_or_the_reason_why_it_is_dropped(
    plays: Optimizer, members: tuple[float | Status, ...]
) -> None:
    """Groups include one without a graded member and one with equal rewards only."""
    credit = plays.credit(group_of(*members))
    assert len(credit.advantages) == len(members)
    assert all(one is None or math.isfinite(one) for one in credit.advantages), credit.advantages
    assert credit.dropped or any(one is not None for one in credit.advantages), "nothing to train on, and no reason"


def test_a_batch_keeps_its_groups(plays: Optimizer, rewards: Sequence[float]) -> None:
    """Every group stays in its place, and dropped groups stay dropped."""
    groups = [group_of(*rewards), group_of(0.5, FAULTS[0]), group_of(*reversed(rewards))]
    credits = [plays.credit(group) for group in groups]
    final = plays.batch_credit(groups, credits)
    assert [len(credit.advantages) for credit in final] == [len(group.trajectories) for group in groups]
    assert [credit.dropped for credit in final] == [credit.dropped for credit in credits]
