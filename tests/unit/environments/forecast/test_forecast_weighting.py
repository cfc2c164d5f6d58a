"""Where the uncertainty of a row has an effect: on the reward, as published, none that GRPO would notice."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from finqa_cli.algorithms.credit import assign_credit, batch_credit, credited_samples
from finqa_cli.types import Group, Message, Rewards, Status, Task, Trajectory, Turn
from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.forecast_rows import ForecastRow
from finqa_plugins.environments.forecast.forecast_verdict import judge, uncertainty_weight
from finqa_plugins.optimizers.grpo import Grpo, GrpoConfig

REPLIES = ("3.0%", "2.9%", "2.5%", "-3%")


def weight(uncertainty: float | None) -> float:
    return uncertainty_weight(uncertainty, u0=0.3, u_hi=0.5, w_hi=0.5)


@pytest.mark.parametrize(
    ("uncertainty", "expected"),
    [
        (None, 1.0),
        (0.0, 1.0),
        (0.3, 1.0),
        (0.4, 0.7071),
        (0.5, 0.5),
        (0.7, 0.25),
        (1.0, 0.0884),
        (7.0, 0.0884),
        (-1, 1),
    ],
)
def test_weights_as_published(uncertainty: float | None, expected: float) -> None:
    assert weight(uncertainty) == pytest.approx(expected, abs=5e-5)


@given(st.floats(0, 1), st.floats(0, 1))
def test_weights_fall_with_uncertainty(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 < weight(high) <= weight(low) <= 1


def test_a_span_without_width_is_refused() -> None:
    with pytest.raises(ValidationError, match="u_hi"):
        ForecastConfig(u0=0.5, u_hi=0.5)


def judged(reply: str, level: float, **options: object) -> Rewards:
    row = ForecastRow(
        id="1",
        messages=(Message(role="user", content="?"),),
        question="?",
        truths=("3%",),
        question_type="pure_forecast",
        uncertainty=level,
    )
    task = Task(id="1", prompt="?", split="train", cluster="ACME", kind="pure_forecast")
    return judge(f"<answer>{reply}</answer>", row, task, ForecastConfig.model_validate(options), None)


def group(name: str, level: float, **options: object) -> Group:
    task = Task(id=name, prompt="?", split="train", cluster=name)
    members = tuple(
        Trajectory(
            id=f"{name}/{place}",
            task=task,
            member=place,
            seed=0,
            status=Status.COMPLETED,
            turns=(Turn(prompt_ids=(1,), completion_ids=(2,), logprobs=(-1.0,)),),
            rewards=judged(reply, level, **options),
        )
        for place, reply in enumerate(REPLIES)
    )
    return Group(task=task, trajectories=members)


def advantages(optimizer: Grpo, **options: object) -> list[list[float]]:
    """Of a certain and an uncertain row, each answered by the same four attempts."""
    groups = [group("certain", 0.1, **options), group("uncertain", 0.9, **options)]
    credits = batch_credit(optimizer, groups, assign_credit(optimizer, groups))
    found = credited_samples(groups, credits, neutral=True)
    assert len(found) == 8
    return [[sample.advantages[1] for sample in part] for part in (found[:4], found[4:])]


@pytest.mark.parametrize("variant", ["grpo", "dapo", "gspo", "cispo"])
def test_on_the_reward_standardised_advantages_stay_as_they_are(variant: str) -> None:
    standardised = Grpo(GrpoConfig.model_validate({"variant": variant}))
    off = advantages(standardised, uncertainty="off")
    assert advantages(standardised, uncertainty="reward") == [pytest.approx(part, rel=1e-5) for part in off]
    assert off[0] == pytest.approx(off[1])


@pytest.mark.parametrize("variant", ["grpo", "dapo", "gspo", "cispo", "dr_grpo", None])
def test_on_the_advantage_they_are_scaled_by_the_weight(variant: str | None) -> None:
    method = Grpo(GrpoConfig.model_validate({"variant": variant}))
    off, on = advantages(method, uncertainty="off"), advantages(method, uncertainty="advantage")
    assert on[0] == off[0]
    assert on[1] == pytest.approx([0.125 * each for each in off[1]])


def test_without_the_division_both_ways_are_the_same() -> None:
    plain = Grpo(GrpoConfig())
    on_reward = advantages(plain, uncertainty="reward")
    assert on_reward == [pytest.approx(part) for part in advantages(plain, uncertainty="advantage")]


@pytest.mark.parametrize("reply", REPLIES)
def test_what_the_reward_and_the_weight_are(reply: str) -> None:
    off, reward, advantage = (judged(reply, 0.7, uncertainty=name) for name in ("off", "reward", "advantage"))
    assert off.weight == reward.weight == 1 and advantage.weight == pytest.approx(0.25)
    assert off.total == advantage.total and reward.total == pytest.approx(0.25 * off.total)
    assert off.components == reward.components == advantage.components
    assert off.components["uncertainty"] == 0.7


def test_parameters_are_options() -> None:
    half = judged("3%", 0.8, u0=0.6, u_hi=1.0, w_hi=0.25)
    assert half.weight == pytest.approx(math.sqrt(0.25))
