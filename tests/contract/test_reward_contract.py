"""What every reward promises, run on every one that is registered: a verdict on any answer, or a typed fault."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.extend import registry
from finqa_cli.types import Task

TASK = Task(id="q", prompt="what was the change in sales?", split="train", cluster="ACME", kind="change")
ANSWERS = [
    "",
    "94",
    "94 or 95",
    "nan",
    '{"answer": 94, "program": "subtract(194, 100)"}',
    "{" * 3000,
    "\ud800",
    "\0",
    "é" * 5000,
]
FUNCTION = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(ground_truth in solution_str)
"""


@pytest.fixture(params=[component.name for component in registry().components("reward")])
def reward(request: pytest.FixtureRequest, tmp_path: Path) -> Reward:
    options: dict[str, Any] = {}
    if request.param == "function":
        (tmp_path / "mine.py").write_text(FUNCTION, encoding="utf-8")
        options["function"] = str(tmp_path / "mine.py")
    made: Reward = registry().create("reward", request.param, options)
    return made


def judged(reward: Reward, answer: str) -> float:
    rewards = reward.score(RewardRequest(task=TASK, solution=answer, truth="94", program="subtract(194, 100)"))
    assert all(math.isfinite(value) for value in rewards.components.values())
    assert "\n" not in rewards.explanation
    return rewards.total


@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
def test_any_answer_gets_the_same_finite_verdict_each_time(reward: Reward, answer: str) -> None:
    total = judged(reward, answer)
    assert math.isfinite(total)
    assert judged(reward, answer) == total


def test_a_right_answer_is_worth_more_than_a_wrong_one(reward: Reward) -> None:
    right = max(judged(reward, "94"), judged(reward, '{"answer": 94, "program": "subtract(194, 100)"}'))
    wrong = max(judged(reward, "17"), judged(reward, '{"answer": 17, "program": "subtract(19, 2)"}'))
    assert right > wrong


def test_it_fulfils_the_protocol(reward: Reward) -> None:
    assert isinstance(reward, Reward)
