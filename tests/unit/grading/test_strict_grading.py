"""Both versions of `strict`: what honest people write is right, what cheats try is not, and why is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import fixtures
import pytest
from grading_tables import ASKED_AGAIN_BY_STRICT_3, HACKS, HONEST, TAKEN_BY_STRICT_3, UPSTREAM

from finqa_cli.grading import Verdict, grade

VERDICTS = Path(fixtures.__path__[0]) / "strict_1_verdicts.jsonl"
Strictly = Callable[[object, str], Verdict]


@pytest.fixture(params=["strict-1", "strict-3"])
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def strictly(profile: str) -> Strictly:
    return lambda answer, truth: grade(answer, truth, profile)


def test_version_1_gives_the_verdicts_that_it_gave() -> None:
    for line in VERDICTS.read_text(encoding="utf-8").splitlines():
        answer, truth, reward, explanation = json.loads(line)
        assert grade(answer, truth, "strict-1") == Verdict(reward, explanation), answer


@pytest.mark.parametrize(("answer", "truth", "reward"), [(row[0], row[1], row[3]) for row in UPSTREAM])
def test_upstreams_table(strictly: Strictly, answer: str, truth: str, reward: int) -> None:
    assert strictly(answer, truth).reward == reward


@pytest.mark.parametrize(("answer", "truth"), HONEST)
def test_honest_answers_are_right(profile: str, strictly: Strictly, answer: object, truth: str) -> None:
    verdict = strictly(answer, truth)
    asked_again = profile == "strict-3" and (answer, truth) in ASKED_AGAIN_BY_STRICT_3
    assert verdict.readable != asked_again, verdict.explanation
    assert verdict.reward != asked_again, verdict.explanation


@pytest.mark.parametrize(("answer", "truth"), HACKS)
def test_reward_hacks_win_nothing(profile: str, strictly: Strictly, answer: object, truth: str) -> None:
    verdict = strictly(answer, truth)
    taken = profile != "strict-1" and (answer, truth) in TAKEN_BY_STRICT_3
    assert verdict.reward == taken, verdict.explanation


def test_the_tables_are_as_large_as_promised() -> None:
    assert len(HONEST) >= 60
    assert len(HACKS) >= 60
    assert len({(repr(answer), truth) for answer, truth in (*HONEST, *HACKS)}) == len(HONEST) + len(HACKS)


@pytest.mark.parametrize(
    ("answer", "truth", "reward"),
    [
        ("0.505", "0.5", 1),
        ("0.506", "0.5", 0),
        ("-0.495", "-0.5", 1),
        ("-0.494", "-0.5", 0),
        ("6.19", "6.118", 0),
        ("201.5", "200.5", 1),
        ("201.6", "200.5", 0),
        ("0.0009", "0.0008", 0),
        ("90.8%", "90%", 1),
        ("91.1%", "90%", 0),
    ],
)
def test_a_measured_truth_allows_one_percent_and_one_unit_and_no_more(
    strictly: Strictly, answer: str, truth: str, reward: int
) -> None:
    assert strictly(answer, truth).reward == reward


def test_zeros_before_a_scale_were_meant(strictly: Strictly) -> None:
    assert strictly("9,500 million", "9,500,400,000").reward == 1
    assert strictly("9,500 million", "9,500,600,000").reward == 0
    assert strictly("9,500,000,000", "9,500,400,000").reward == 0


@pytest.mark.parametrize(
    "answer", [f"{number}{unit}" for number in ("4.5", "12", "-77") for unit in ("", "%", " million", " billion")]
)
def test_an_answer_is_right_for_one_truth_without_a_unit(strictly: Strictly, answer: str) -> None:
    truths = [f"{number}{zeros}" for number in ("4.5", "12", "-77") for zeros in ("", "e-2", "e6", "e9")]
    assert sum(strictly(answer, truth).reward for truth in truths) == 1


@pytest.mark.parametrize(
    ("answer", "truth", "reason"),
    [
        ("7", "6.118", "'7' is outside the tolerance"),
        ("seven", "6.118", "'seven' is not one number"),
        ("No", "Yes", "'No' is not the expected text"),
        ("5, 6", "6.118", "1 value is expected, got 2"),
        ("1", r"\boxed{1} \boxed{2}", "2 values are expected, got 1"),
        ("1, 3", r"\boxed{1} \boxed{2}", "1 of 2 values do not match, first the one at place 2"),
        ("2022: 1, 2022: 3", r"\boxed{2022: 1, 2023: 2}", "comes twice"),
        ("2022: 1, 3", r"\boxed{2022: 1, 2023: 2}", "some without"),
        ("2022: 1, 2024: 3", r"\boxed{2022: 1, 2023: 2}", "not those that are expected"),
        ("no: 7", "7", "another word stands before a value"),
        (r"\boxed{1} or 2", "1.5", "other numbers beside"),
        ("", "6.118", "empty"),
        ("NaN", "6.118", "not a number"),
        ("1," * 200, "6.118", "more than 100 values"),
        (r"\boxed{1}" * 200, "6.118", "more than 100 values"),
    ],
)
def test_the_reason_is_told_in_one_line_without_the_truth(answer: str, truth: str, reason: str) -> None:
    explanation = grade(answer, truth, "strict-1").explanation
    assert reason in explanation
    assert "\n" not in explanation
    assert truth not in explanation
