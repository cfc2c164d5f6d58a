from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.types import Rewards, Task

WHY = "Why did interest expense fall?"


def rewarded(name: str, solution: str, truth: str, question: str = "How much?", **options: Any) -> Rewards:
    reward = registry().create("reward", name, options)
    task = Task(id="q", prompt=question, split="test", cluster="ACME")
    rewards: Rewards = reward.score(RewardRequest(task=task, solution=solution, truth=truth))
    return rewards


@pytest.mark.parametrize(
    ("answer", "truth", "question", "value"),
    [
        ("1000", "1000", "", 1),
        ("1001", "1000", "", 0),
        ("50.5%", "50%", "", 0),
        ("", "1000", "", -1),
        ("1000", "", "", 0),
        ("2000", "1000", "", -1),
        ("The rate went down.", "a lower rate", WHY, 0),
        ("Lower rate", "a lower rate", WHY, -1),  # ten characters: no explanation
        ("The rate went down.", "a lower rate", "Which rate?", -1),
        ("The rate went down.", "12.5", WHY, -1),  # a number is asked for and can be judged
        ("The rate went down.", "yes", "Explain: did it fall?", -1),
    ],
)
def test_three_values(answer: str, truth: str, question: str, value: float) -> None:
    assert rewarded("ternary", json.dumps({"answer": answer}), truth, question).total == value
    assert rewarded("ternary", answer, truth, question, format="plain").total == value


def test_a_malformed_reply_is_wrong_and_the_values_can_be_set() -> None:
    assert rewarded("ternary", "1000", "1000").total == -1
    mapping = {"exact": 2.0, "close": 0.5, "wrong": 0.0}
    rewards = rewarded("ternary", "1001", "1000", format="plain", ternary_mapping=mapping)
    assert rewards.total == 0.5 and dict(rewards.components) == {"exact": 0.0, "close": 0.5, "wrong": 0.0}
    with pytest.raises(ConfigError, match="must fall from exact over close to wrong"):
        rewarded("ternary", "", "", ternary_mapping={"close": -2.0})


@given(st.text(max_size=30), st.text(max_size=12), st.sampled_from(["json", "plain"]))
def test_any_reply_has_one_of_three_values(solution: str, truth: str, written: str) -> None:
    rewards = rewarded("ternary", solution, truth, WHY, format=written)
    assert rewards.total in (1.0, 0.0, -1.0) and sum(rewards.components.values()) == rewards.total


def test_graded_is_the_verdict_of_a_profile() -> None:
    assert dict(rewarded("graded", "2024", "2023").components) == {"strict": 0.0}
    assert dict(rewarded("graded", "2024", "2023", profile="openenv").components) == {"openenv": 1.0}
    assert rewarded("graded", '{"answer": 12.5}', "12.5", format="json").total == 1.0
    assert rewarded("graded", "12.5", "12.5", format="json").total == 0.0


@given(st.text(max_size=30), st.text(max_size=12), st.sampled_from(["json", "plain"]))
def test_graded_is_0_or_1(solution: str, truth: str, written: str) -> None:
    assert rewarded("graded", solution, truth, format=written).total in (0.0, 1.0)


@pytest.mark.parametrize("name", ["weighted", "ternary", "graded"])
def test_they_fulfil_the_contract(name: str) -> None:
    assert isinstance(registry().create("reward", name, {}), Reward)
