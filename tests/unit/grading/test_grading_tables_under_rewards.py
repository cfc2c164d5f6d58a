"""What cheats try and what honest people write, under `weighted` and `ternary`."""

from __future__ import annotations

import json

import pytest
from grading_tables import ASKED_AGAIN_BY_STRICT_3, HACKS, HONEST, TAKEN_BY_STRICT_3

from finqa_cli.contracts import RewardRequest
from finqa_cli.extend import registry
from finqa_cli.types import Rewards, Task

# `exe_ans` writes 12.5 % as 0.125 or as 12.5, so a sign on one side only is read both ways.
READ_BOTH_WAYS = [
    ("4.5%", "4.5"),
    ("4.5", r"\boxed{4.5\%}"),
    ("450%", "450"),
    ("4.5 percentage points", "0.045"),
    ("12 bps", "0.0012"),
]
# Within 5 % of the truth, as the specification of these rewards has it.
CLOSE = [
    ("2024", "2023"),
    ("101", "100"),
    ("450", "448"),
    ("1450", "1448"),
    ("1009", "1000"),
    ("1,005,000", "1,000,000"),
    ("9.5 billion", "9,513,482,000"),
    ("3545", "3510.67"),
    ("2023: 58, 2024: 59", "2023: 59, 2024: 58"),
    ("58, 59", "2023: 59, 2024: 58"),
    (r"2024: \boxed{59}, 2023: \boxed{58}", "2023: 59, 2024: 58"),
]


# What strict-3 takes for one value; a JSON reply has no answers of the last two types.
ONE_VALUE = [*TAKEN_BY_STRICT_3, (True, "Yes"), ([5], "5")]
# Unreadable for strict-3, which would ask again; texts that are equal are exact all the same.
UNREADABLE = [(answer, truth) for answer, truth in ASKED_AGAIN_BY_STRICT_3 if "boxed" in str(answer)]


def rewarded(name: str, answer: object, truth: str, written: str, profile: str) -> Rewards:
    solution = str(answer) if written == "plain" else json.dumps({"answer": answer})
    task = Task(id="q", prompt="How much?", split="test", cluster="ACME")
    reward = registry().create("reward", name, {"format": written, "profile": profile})
    rewards: Rewards = reward.score(RewardRequest(task=task, solution=solution, truth=truth))
    return rewards


def level(answer: object, truth: str, written: str, profile: str) -> str:
    """What both rewards take the answer for."""
    paid = rewarded("weighted", answer, truth, written, profile).components
    weighted = "exact" if paid["exact"] else "close" if paid["numerical"] else "wrong"
    ternary = rewarded("ternary", answer, truth, written, profile)
    assert ternary.components[weighted] == ternary.total or not truth.strip()
    return weighted


@pytest.mark.parametrize("written", ["plain", "json"])
@pytest.mark.parametrize(("profile", "one_value"), [("strict-1", []), ("strict-3", ONE_VALUE)])
def test_of_the_hacks_only_the_documented_ones_earn(
    written: str, profile: str, one_value: list[tuple[object, str]]
) -> None:
    found: dict[str, list[tuple[object, str]]] = {"exact": [], "close": [], "wrong": []}
    for answer, truth in HACKS:
        found[level(answer, truth, written, profile)].append((answer, truth))
    assert sorted(found["exact"], key=repr) == sorted([*READ_BOTH_WAYS, *_written(one_value, written)], key=repr)
    assert sorted(found["close"], key=repr) == sorted(CLOSE, key=repr)


def _written(one_value: list[tuple[object, str]], written: str) -> list[tuple[object, str]]:
    """Without values of another type than a text or a number, which no answer of a JSON reply is."""
    return [pair for pair in one_value if written == "plain" or isinstance(pair[0], str)]


@pytest.mark.parametrize("written", ["plain", "json"])
@pytest.mark.parametrize(("profile", "unreadable"), [("strict-1", []), ("strict-3", UNREADABLE)])
def test_honest_answers_are_exact_or_rounded(written: str, profile: str, unreadable: list[tuple[object, str]]) -> None:
    found = {(answer, truth): level(answer, truth, written, profile) for answer, truth in HONEST}
    assert [pair for pair, one in found.items() if one == "wrong"] == unreadable
    rounded = [answer for (answer, _), one in found.items() if one == "close"]
    assert sorted(map(str, rounded)) == sorted(
        ["0.13020833333333334", "9.513 billion", "9.51bn", "9,513 million", "1,005,000", "383.3 billion", "136.4"]
    )
