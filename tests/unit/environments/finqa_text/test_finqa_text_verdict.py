from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from fixtures.finqa_text_rows import original, prepared
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.errors import EnvironmentFault
from finqa_cli.types import Rewards, Task
from finqa_plugins.environments.finqa_text.text_environment import judge
from finqa_plugins.environments.finqa_text.text_rows import read_row

GROWTH = read_row(original())
COMPARISON = read_row(original(qa={"program": "greater(600, 500)", "exe_ans": "yes"}))
TASK = Task(id=GROWTH.id, prompt=GROWTH.question, split="dev", cluster="AAL", kind=GROWTH.kind)
PARTS = ("correct", "execution", "program", "answer", "format")


def reply(answer: object, program: object = None) -> str:
    return json.dumps({"answer": answer} if program is None else {"answer": answer, "program": program})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (reply(0.2, "subtract(600, 500), divide(#0, 500)"), (1, 1, 1, 1, 1)),
        (reply("20%", "divide(subtract(600, 500), 500)"), (1, 1, 1, 1, 1)),
        (reply(0.2, "divide(100, 500)"), (1, 1, 0, 1, 1)),
        (reply(7, "subtract(600, 500), divide(#0, 500)"), (1, 1, 1, 0, 1)),
        (reply(0.2, "divide(subtract(600, 500), 500) * 100"), (0, 0, 0, 1, 1)),
        (reply(0.2, "subtract(600, 500), divide(#0, 0)"), (0, 0, 0, 1, 1)),
        (reply(0.2, "about a fifth"), (0, 0, 0, 1, 1)),
        (reply(0.2), (1, 0, 0, 1, 1)),
        (reply("20 %"), (1, 0, 0, 1, 1)),
        (reply(20), (0, 0, 0, 0, 1)),
        (reply("yes"), (0, 0, 0, 0, 1)),
        ("0.2", (0, 0, 0, 0, 0)),
        ("", (0, 0, 0, 0, 0)),
    ],
)
def test_each_part_of_the_verdict(text: str, parts: tuple[float, ...]) -> None:
    rewards = judge(text, GROWTH, TASK, None)
    assert rewards.components == dict(zip(PARTS, parts, strict=True))
    assert rewards.total == parts[0]
    assert rewards.explanation and "0.2 is" not in rewards.explanation


@pytest.mark.parametrize(
    ("text", "total"),
    [(reply(7, GROWTH.program), 0), (reply(0.2, "add(1, 2)"), 1), (reply(0.2), 1), (reply(7), 0), ("0.2", 0)],
)
def test_the_stated_answer_counts_if_that_is_chosen(text: str, total: int) -> None:
    rewards = judge(text, GROWTH, TASK, None, counts="answer")
    assert rewards.total == rewards.components["correct"] == total
    assert rewards.components | {"correct": 0} == judge(text, GROWTH, TASK, None).components | {"correct": 0}
    assert rewards.explanation


@pytest.mark.parametrize(("answer", "right"), [("yes", 1), ("Yes.", 1), ("no", 0), (1, 0)])
def test_yes_and_no(answer: object, right: float) -> None:
    assert judge(reply(answer), COMPARISON, TASK, None).components["answer"] == right
    assert judge(reply(answer, "greater(600, 500)"), COMPARISON, TASK, None).total == 1


def test_without_a_gold_program_the_result_still_counts() -> None:
    row = read_row(prepared(target_program=None))
    assert set(judge("", row, TASK, None).components) == {"correct", "execution", "answer", "format"}
    assert judge(reply(0, "divide(1, 5)"), row, TASK, None).total == 1
    wrong = judge(reply(0.2, "divide(1, 4)"), row, TASK, None)
    assert wrong.total == 0 and wrong.explanation


@given(st.one_of(st.text(), st.builds(reply, st.text() | st.floats() | st.integers(), st.text())))
def test_any_reply_gets_a_verdict_of_one_line(text: str) -> None:
    rewards = judge(text, GROWTH, TASK, None)
    assert set(rewards.components) == set(PARTS) and set(rewards.components.values()) <= {0.0, 1.0}
    assert rewards.explanation and "\n" not in rewards.explanation


class Configured(Reward):
    """A reward that keeps what it was asked."""

    def __init__(self, parts: Mapping[str, float], explanation: str = "") -> None:
        self.rewards = Rewards(total=0.5, components=parts, explanation=explanation)
        self.requests: list[RewardRequest] = []

    def score(self, request: RewardRequest) -> Rewards:
        self.requests.append(request)
        return self.rewards


def test_a_configured_reward_decides_and_the_measures_stand_beside_it() -> None:
    reward = Configured({"program": 0.3, "exact": 0.2})
    text = reply(0.2, GROWTH.program)
    rewards = judge(text, GROWTH, TASK, reward)
    assert rewards.total == 0.5
    measures = {"correct": 1, "execution": 1, "environment_program": 1, "answer": 1, "format": 1}
    assert rewards.components == {"program": 0.3, "exact": 0.2, **measures}
    own = judge(text, GROWTH, TASK, None).explanation
    assert rewards.explanation == f"from the reward that was chosen; the environment says: {own}"
    assert judge(text, GROWTH, TASK, Configured({}, "for a reason")).explanation == "for a reason"


def test_accuracy_follows_our_own_part_whatever_a_reward_calls_correct() -> None:
    rewards = judge(reply(0.2, GROWTH.program), GROWTH, TASK, Configured({"correct": 0.0}))
    assert rewards.components["correct"] == 1


def test_a_configured_reward_is_told_everything_about_the_row() -> None:
    reward = Configured({})
    row = replace(GROWTH, extra={"uncertainty": 0.4})
    judge("what was said", row, TASK, reward)
    (request,) = reward.requests
    assert (request.task, request.solution, request.truth) == (TASK, "what was said", "0.2")
    assert (request.program, request.table) == (row.program, row.table)
    expected: dict[str, Any] = {"question_type": "subtract+divide", "question": row.question, "company": "AAL"}
    assert request.extra_info == {**expected, "uncertainty": 0.4}


def test_a_reward_that_fails_is_no_reward_of_zero() -> None:
    class Broken(Reward):
        def score(self, request: RewardRequest) -> Rewards:
            raise EnvironmentFault("the user's function raised")

    with pytest.raises(EnvironmentFault):
        judge("", GROWTH, TASK, Broken())
