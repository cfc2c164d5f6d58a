"""Contract of rewards: a finite and reproducible verdict on any answer.

The fixtures `right` and `wrong` can be replaced for a reward that judges something else than a number.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.types import Rewards, Task

TASK = Task(id="q", prompt="what was the change in sales?", split="train", cluster="ACME", kind="change")
ASKED = RewardRequest(task=TASK, solution="", truth="94", program="subtract(194, 100)")
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


@pytest.fixture
def right() -> list[RewardRequest]:
    """Returns right answers in the forms that a reward may need; it must reward at least one of them."""
    return [replace(ASKED, solution=text) for text in ("94", '{"answer": 94, "program": "subtract(194, 100)"}')]


@pytest.fixture
def wrong() -> list[RewardRequest]:
    """Returns wrong answers in the same forms."""
    return [replace(ASKED, solution=text) for text in ("17", '{"answer": 17, "program": "subtract(19, 2)"}')]


@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
def test_any_answer_gets_the_same_finite_verdict_each_time(
    subject: Reward, right: list[RewardRequest], answer: str
) -> None:
    """Answers include empty, long and deeply nested ones, and ones with invalid Unicode."""
    asked = replace(right[0], solution=answer)
    assert judged(subject, asked) == judged(subject, asked)


def test_a_right_answer_is_worth_more_than_a_wrong_one(
    subject: Reward, right: list[RewardRequest], wrong: list[RewardRequest]
) -> None:
    """The best right answer gets more than every wrong one; otherwise nothing can be learned."""
    best = max(judged(subject, asked).total for asked in right)
    worst = max(judged(subject, asked).total for asked in wrong)
    assert best > worst, f"a right answer gets {best:g}, a wrong one {worst:g}"


def test_it_is_pure_also_beside_a_verdict_of_the_environment(subject: Reward, right: list[RewardRequest]) -> None:
    """The components of the environment's verdict are kept, and `correct` remains the reward's own."""
    own = Rewards(total=0.0, components={"correct": 0.0, "own": 0.5}, explanation="of the environment")
    beside = subject.score_beside(right[0], own)
    assert beside.total == judged(subject, right[0]).total
    assert beside.components["correct"] == 0.0 and 0.5 in beside.components.values() and beside.explanation


def judged(reward: Reward, asked: RewardRequest) -> Rewards:
    """Returns the verdict after checking that every number is finite and the explanation is one line."""
    rewards = reward.score(asked)
    assert math.isfinite(rewards.total), f"the total for {asked.solution[:40]!r} is {rewards.total}"
    assert all(math.isfinite(value) for value in rewards.components.values()), rewards.components
    assert "\n" not in rewards.explanation
    return rewards
