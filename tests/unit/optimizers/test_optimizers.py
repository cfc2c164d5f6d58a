from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from finqa_cli.algorithms.losses import CrossEntropyLoss, PolicyGradientLoss
from finqa_cli.contracts import Optimizer
from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.extend import registry
from finqa_cli.types import Group, Rewards, Status, Task, Trajectory
from finqa_plugins.optimizers.grpo import Grpo, GrpoConfig

TASK = Task(id="q1", prompt="?", split="train", cluster="ACME")


def group(*members: float | Status) -> Group:
    """A number is a graded attempt; a status is an attempt without a grade."""
    return Group(
        task=TASK,
        trajectories=tuple(
            Trajectory(
                id=f"train/q1/{place}",
                task=TASK,
                member=place,
                seed=0,
                status=member if isinstance(member, Status) else Status.COMPLETED,
                turns=(),
                rewards=None if isinstance(member, Status) else Rewards(total=member),
            )
            for place, member in enumerate(members)
        ),
    )


def test_credit_is_the_distance_to_the_group_mean() -> None:
    credit = Grpo(GrpoConfig()).credit(group(1, 0, 0, 0))
    assert credit.advantages == (0.75, -0.25, -0.25, -0.25)
    assert credit.dropped == ""


def test_normalised_credit_divides_by_the_population_deviation() -> None:
    credit = Grpo(GrpoConfig(normalize_std=True)).credit(group(1, 0, 0, 0))
    deviation = math.sqrt(0.1875)
    assert credit.advantages == pytest.approx([0.75 / (deviation + 1e-8)] + [-0.25 / (deviation + 1e-8)] * 3, rel=1e-12)


def test_faults_neither_get_credit_nor_move_the_mean() -> None:
    credit = Grpo(GrpoConfig()).credit(group(1, Status.SANDBOX_ERROR, 0, Status.ENGINE_ERROR))
    assert credit.advantages == (0.5, None, -0.5, None)


def test_a_graded_fault_is_still_a_fault() -> None:
    faulted = group(1, 0, 1)
    broken = faulted.trajectories[2]
    marked = Trajectory(
        id=broken.id, task=TASK, member=2, seed=0, status=Status.ENVIRONMENT_ERROR, turns=(), rewards=broken.rewards
    )
    credit = Grpo(GrpoConfig()).credit(Group(task=TASK, trajectories=(*faulted.trajectories[:2], marked)))
    assert credit.advantages == (0.5, -0.5, None)


@pytest.mark.parametrize("rewards", [(0, 0, 0), (1, 1), (0.3, 0.3 + 5e-7)])
def test_equal_rewards_are_dropped(rewards: tuple[float, ...]) -> None:
    assert Grpo(GrpoConfig()).credit(group(*rewards)).dropped == "zero_variance"


@pytest.mark.parametrize("members", [(), (1,), (1, Status.SANDBOX_ERROR), (Status.ENGINE_ERROR,)])
def test_too_few_members_are_dropped(members: tuple[float | Status, ...]) -> None:
    credit = Grpo(GrpoConfig()).credit(group(*members))
    assert credit.dropped == "too_few"
    assert len(credit.advantages) == len(members)


def test_minimum_members_is_an_option() -> None:
    assert Grpo(GrpoConfig(minimum_members=4)).credit(group(1, 0, 0)).dropped == "too_few"


@given(
    rewards=st.lists(st.integers(-50, 50).map(lambda tenth: tenth / 10), min_size=2, max_size=8),
    shift=st.floats(-3, 3),
    normalize=st.booleans(),
)
def test_credit_sums_to_zero_and_ignores_a_shift(rewards: list[float], shift: float, normalize: bool) -> None:
    optimizer = Grpo(GrpoConfig(normalize_std=normalize))
    credit, moved = optimizer.credit(group(*rewards)), optimizer.credit(group(*(reward + shift for reward in rewards)))
    plain = [advantage for advantage in credit.advantages if advantage is not None]
    assert math.fsum(plain) == pytest.approx(0, abs=1e-6)
    assert credit.dropped == moved.dropped
    assert [advantage for advantage in moved.advantages if advantage is not None] == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_an_error(reward: float) -> None:
    with pytest.raises(FinqaError, match="train/q1/1"):
        Grpo(GrpoConfig()).credit(group(0, reward))


def test_the_loss_carries_the_clips() -> None:
    spec = Grpo(GrpoConfig(clip_low=0.1, clip_high=0.3)).loss()
    assert spec == PolicyGradientLoss(clip_low=0.1, clip_high=0.3)


def test_sft_imitates_everything_but_faults() -> None:
    sft = registry().create("optimizer", "sft", {})
    assert sft.credit(group(0, Status.SANDBOX_ERROR, 1)).advantages == (1.0, None, 1.0)
    assert sft.credit(group(Status.SANDBOX_ERROR)).dropped == "too_few"
    assert sft.loss() == CrossEntropyLoss()


@pytest.mark.parametrize("name", ["grpo", "sft"])
def test_components_fulfil_the_contract(name: str) -> None:
    assert isinstance(registry().create("optimizer", name, {}), Optimizer)


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'clip_low'"):
        registry().create("optimizer", "grpo", {"clip_lo": 0.1})


@pytest.mark.parametrize("options", [{"clip_low": 1.0}, {"clip_high": -0.1}, {"minimum_members": 1}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        GrpoConfig.model_validate(options)
