"""The verdict, against the table of what upstream's rules give."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.openenv_finqa.grading import MAX_ANSWER_BYTES, grade

UPSTREAM = [
    ("6.12", "6.118", 1),
    ("1009", r"\boxed{1000}", 0),
    ("1001", "1000", 1),
    ("101", "100", 1),
    ("1005000", "1000000", 0),
    ("0.0009", "0", 1),
    ("0.001", "0", 0),
    ("0.0628", r"\boxed{6.28\%}", 1),
    ("6.28", r"\boxed{6.28\%}", 0),
    ("6.28%", r"\boxed{6.28}", 1),
    ("0.045", r"\boxed{4.500}", 0),
    ("4.5%", r"\boxed{4.500}", 1),
    ("50%", r"\boxed{1/2}", 1),
    ("0.5", r"\boxed{1/2}", 1),
    ("(77)", r"\boxed{-77} million", 1),
    ("-77 million", r"\boxed{-77}", 0),
    ("1.5x", "1.5", 0),
    ("$1,234.56", "1234.56", 1),
    ("(5%)", "-5%", 0),
    ("−5", "-5", 0),  # noqa: RUF001
    (r"The answer is \boxed{6.118}", "6.118", 1),
    ("The answer is 6.118", "6.118", 0),
    ("Yes", r"\boxed{Yes}", 1),
    ("yes", "Yes", 1),
    ("Yes.", "Yes", 0),
    ("Yes", r"\boxed{\text{Yes}}", 0),
    ("0.5", r"\boxed{\frac{1}{2}}", 0),
    ("1, 2", r"\boxed{1} and \boxed{2}", 1),
    ("2023: 1, 2024: 2", r"\boxed{1} and \boxed{2}", 1),
    ("2, 1", r"\boxed{1} and \boxed{2}", 0),
    ("1", r"\boxed{1} and \boxed{2}", 0),
    ("1,234, 5,678", r"\boxed{1,234} and \boxed{5,678}", 0),
    ("1234, 5678", r"\boxed{1,234} and \boxed{5,678}", 1),
    ("2024: .931, 2022: .933, 2023: .930", r"\boxed{2022:\ 0.933,\; 2023:\ 0.930,\; 2024:\ 0.931}", 1),
    ("0.933, 0.930, 0.931", r"\boxed{2022:\ 0.933,\; 2023:\ 0.930,\; 2024:\ 0.931}", 1),
    ("0.933, 0.930, 0.5", r"\boxed{2022:\ 0.933,\; 2023:\ 0.930,\; 2024:\ 0.931}", 0),
    ("2023: 0.5, 2022: 0.7", r"\boxed{2022:\ 0.5,\; 2023:\ 0.7}", 0),
    ("10, 20", r"\boxed{10\%, 20\%}", 0),
    ("10%, 20%", r"\boxed{10\%, 20\%}", 1),
    ("", "", 1),
    ("unknown", "6.118", 0),
    ("unknown", r"\boxed{Yes}", 0),
    ("nan", "6.118", 0),
    ("inf", "6.118", 0),
    ("6.118", "inf", 0),
    ("5, 6, 6.118", "6.118", 0),
    ("1/0", "1", 0),
    ("-1/2", "-0.5", 1),
]


@pytest.mark.parametrize(("answer", "truth", "reward"), UPSTREAM)
def test_verdicts_are_upstreams(answer: str, truth: str, reward: int) -> None:
    assert grade(answer, truth).reward == reward


@pytest.mark.parametrize(
    ("answer", "truth", "reason"),
    [
        ("7", "6.118", "outside the tolerance"),
        ("seven", "6.118", "not a number"),
        ("No", "Yes", "not the expected text"),
        ("1", r"\boxed{1} \boxed{2}", "2 values are expected"),
        ("1, 3", r"\boxed{1} \boxed{2}", "Value 2 of 2"),
        ("2022: 1, 2023: 3", "\\boxed{2022: 1, 2023: 2}", "1 of 2 values"),
    ],
)
def test_the_reason_is_told_in_one_line_without_the_truth(answer: str, truth: str, reason: str) -> None:
    explanation = grade(answer, truth).explanation
    assert reason in explanation
    assert "\n" not in explanation
    assert truth not in explanation


ATTACKS = [
    "\\boxed{" * 580,
    "\\text{" * 680,
    "1/" * 2000,
    "9" * 4000 + "/" + "7" * 90,
    "20" * 2000,
    "2024 " + " " * 4000,
    ":" * 4000,
    ";" * 4000,
    "\\" * 4000,
    "%" * 4000,
    "1e999999/3",
    "\ud800" * 10,
]


@pytest.mark.parametrize("answer", ATTACKS)
@pytest.mark.parametrize("truth", ["6.118", r"\boxed{1} \boxed{2}", r"\boxed{2022: 1, 2023: 2}"])
def test_hostile_answers_cost_no_time_and_win_nothing(answer: str, truth: str) -> None:
    began = time.perf_counter()
    assert grade(answer, truth).reward == 0
    assert time.perf_counter() - began < 0.25


def test_long_answers_are_refused() -> None:
    assert grade("6.118" + " " * MAX_ANSWER_BYTES, "6.118").reward == 0


@given(st.text(max_size=300), st.text(max_size=100))
def test_any_text_gets_a_verdict(answer: str, truth: str) -> None:
    verdict = grade(answer, truth)
    assert verdict.reward in (0.0, 1.0)
    assert verdict.explanation


@given(st.floats(min_value=-1e9, max_value=1e9))
def test_the_truth_itself_is_right(number: float) -> None:
    assert grade(repr(number), f"\\boxed{{{number!r}}}").reward == 1


@given(st.floats(min_value=2, max_value=1e9), st.booleans())
def test_numbers_outside_both_tolerances_are_wrong(number: float, above: bool) -> None:
    distance = 0.02 * number + 0.02
    wrong = number + distance if above else number - distance
    assert grade(repr(wrong), repr(number)).reward == 0
