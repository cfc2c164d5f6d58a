from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.contracts import OWN_PREFIX as OWN
from finqa_cli.contracts import EnvironmentContext, TextSession
from finqa_cli.types import Rewards, Status, Task, Trajectory
from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.forecast_environment import ForecastEnvironment
from finqa_plugins.environments.forecast.forecast_generate import generate
from finqa_plugins.environments.forecast.forecast_measures import JudgedForecast, calibration, measure

TASK = Task(id="1", prompt="?", split="test", cluster="ACME")


def attempt(components: Mapping[str, float] | None, *, task: Task = TASK) -> Trajectory:
    """None is a fault."""
    return Trajectory(
        id=task.id,
        task=task,
        member=0,
        seed=0,
        status=Status.ENGINE_ERROR if components is None else Status.COMPLETED,
        turns=(),
        rewards=None if components is None else Rewards(total=0.0, components=components),
    )


def parts(correct: float, **others: float) -> dict[str, float]:
    return {"correct": correct, "score": correct, "has_answer_tag": 1.0, "is_refusal": 0.0, **others}


def test_calibration_by_hand() -> None:
    found = calibration(
        [JudgedForecast(0.9, True), JudgedForecast(0.9, False), JudgedForecast(0.2, False), JudgedForecast(0.2, False)]
    )
    assert found["brier"] == pytest.approx((0.01 + 0.81 + 0.04 + 0.04) / 4)
    assert found["ece"] == pytest.approx((2 * abs(0.9 - 0.5) + 2 * abs(0.2 - 0)) / 4)
    assert found["log_score"] == pytest.approx(-(math.log(0.9) + math.log(0.1) + 2 * math.log(0.8)) / 4)
    assert found["confidence"] == pytest.approx(0.55) and found["overconfidence"] == pytest.approx(0.3)
    assert calibration([]) == {}


def test_the_bounds_of_the_calibration_error() -> None:
    assert calibration([JudgedForecast(1.0, True), JudgedForecast(0.0, False)])["ece"] == 0
    worst = calibration([JudgedForecast(0.0, True), JudgedForecast(1.0, False)])
    assert worst["ece"] == worst["brier"] == 1 and worst["log_score"] == pytest.approx(-math.log(1e-6))


def test_chance_alone_makes_the_calibration_error_greater_and_no_other_figure() -> None:
    chance = random.Random(0)
    fair = [calibration([JudgedForecast(0.5, chance.random() < 0.5) for _ in range(50)]) for _ in range(200)]
    means = {name: sum(each[name] for each in fair) / len(fair) for name in fair[0]}
    assert means["ece"] == pytest.approx(math.sqrt(0.25 / 50 * 2 / math.pi), rel=0.15), "the mean of |N(0, 0.25/50)|"
    assert means["brier"] == 0.25 and abs(means["overconfidence"]) < 0.02


def test_figures_by_hand() -> None:
    found = measure(
        [
            attempt(parts(1, uncertainty=0.1, pure_forecast=1.0, direction_correct=1.0, confidence=0.95)),
            attempt(parts(0, uncertainty=0.19, pure_forecast=0.5, direction_correct=1.0, confidence=1.0)),
            attempt(parts(0, uncertainty=1.0, event_detection=0.0) | {"is_refusal": 1.0, "has_answer_tag": 0.0}),
            attempt(parts(1, fallback=1.0)),
            attempt(None),
        ]
    )
    assert found["accuracy_by_uncertainty"] == {"0.0-0.2": 0.5, "0.8-1.0": 0.0}
    assert found["attempts_by_uncertainty"] == {"0.0-0.2": 2.0, "0.8-1.0": 1.0}
    assert found["confidence_by_uncertainty"] == {"0.0-0.2": pytest.approx(0.975)}
    assert found["accuracy_by_confidence"] == {"0.9-1.0": 0.5} and found["ece"] == pytest.approx(0.975 - 0.5)
    assert found["score_by_type"] == {"pure_forecast": 0.75, "event_detection": 0.0, "fallback": 1.0}
    assert found["direction_accuracy"] == 1 and found["confidence_rate"] == 0.5
    assert found["refusal_rate"] == 0.25 and found["answer_tag_rate"] == 0.75
    assert "response_words" not in found


def test_of_nothing_there_are_no_figures() -> None:
    assert measure([]) == measure([attempt(None)]) == {}
    assert "brier" not in measure([attempt(parts(1))]) and "direction_accuracy" not in measure([attempt(parts(1))])


def test_parts_of_a_configured_reward_are_not_taken_for_ours() -> None:
    found = measure([attempt({"score": 7.0, f"{OWN}score": 0.25, "correct": 1.0})])
    assert found["score"] == 0.25


PARTS = st.fixed_dictionaries(
    {"correct": st.sampled_from([0.0, 1.0])},
    optional={name: st.floats(0, 1) for name in ("confidence", "uncertainty", "score", "pure_forecast")},
)


@given(st.lists(PARTS, max_size=20), st.randoms())
def test_figures_are_finite_and_blind_to_order(attempts: list[dict[str, float]], rng: random.Random) -> None:
    found = measure([attempt(one) for one in attempts])
    json.dumps(found, allow_nan=False)
    shuffled = rng.sample(attempts, len(attempts))
    assert measure([attempt(one) for one in shuffled]) == found
    assert 0 <= found.get("ece", 0) <= 1 and 0 <= found.get("brier", 0) <= 1
    assert sum(found.get("attempts_by_uncertainty", {}).values()) == sum("uncertainty" in one for one in attempts)


async def played(noise: float | None, confidences: Sequence[float] = ()) -> tuple[list[Trajectory], list[float]]:
    """A policy that answers each row's signal, with its true probability as confidence unless others are given."""
    config = ForecastConfig(
        companies=150, questions=12, confidence=True, noise=noise, types=("event_detection", "news_sentiment")
    )
    environment = ForecastEnvironment(config, EnvironmentContext(snapshot=None))
    rows = [row for part in generate(config).rows.values() for row in part]
    tasks = {task.id: task for split in environment.splits() for task in environment.tasks(split)}
    attempts, known = [], []
    for place, row in enumerate(rows):
        known.append(row.extra["signal_probability"])
        confidence = confidences[place % len(confidences)] if confidences else known[-1]
        session = await environment.open(tasks[row.id], seed=0, sandbox=None)
        assert isinstance(session, TextSession)
        await session.reply(f"<answer>{row.extra['signal']}</answer><confidence>{confidence:.6f}</confidence>")
        rewards = await session.grade()
        attempts.append(attempt(rewards.components, task=tasks[row.id]))
    return attempts, known


async def test_on_data_with_known_noise_the_figures_are_what_the_noise_makes_them() -> None:
    """Tolerances are four standard errors of 1,800 attempts, or of the 300 and more of a bucket."""
    attempts, known = await played(None)
    found = measure(attempts)
    right = [attempt.rewards.components["correct"] for attempt in attempts if attempt.rewards]
    assert sum(right) / len(right) == pytest.approx(sum(known) / len(known), abs=0.05)
    assert found["brier"] == pytest.approx(sum(p * (1 - p) for p in known) / len(known), abs=0.03)
    assert found["ece"] < 0.06 and abs(found["overconfidence"]) < 0.05
    buckets = found["accuracy_by_uncertainty"]
    assert list(buckets) == ["0.0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1.0"]
    for place, accuracy in enumerate(buckets.values()):
        level = 0.1 + 0.2 * place
        assert accuracy == pytest.approx(1 - level * (1 / 2 + 2 / 3) / 2, abs=0.12)


async def test_a_policy_that_is_always_sure_is_found_out() -> None:
    honest, _ = await played(0.8)
    sure, known = await played(0.8, [1.0])
    better, worse = measure(honest), measure(sure)
    assert worse["overconfidence"] == worse["ece"] == pytest.approx(1 - sum(known) / len(known), abs=0.05)
    for name in ("brier", "ece", "log_score"):
        assert better[name] < worse[name] - 0.1
    assert better["score"] == worse["score"]
