"""Profile `openenv`, against the table of what upstream's rules give."""

from __future__ import annotations

import pytest
from grading_tables import UPSTREAM
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.grading import grade


@pytest.mark.parametrize(("answer", "truth", "reward"), [row[:3] for row in UPSTREAM])
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


@given(st.floats(min_value=-1e9, max_value=1e9))
def test_the_truth_itself_is_right(number: float) -> None:
    assert grade(repr(number), f"\\boxed{{{number!r}}}").reward == 1


def test_the_tolerance_of_zero_is_for_zero_alone() -> None:
    assert grade("0.0009", "0.0005").reward == 0
    assert grade("0.0005", "0.0005").reward == grade("0.0009", "0.0").reward == 1


@given(st.floats(min_value=2, max_value=1e9), st.booleans())
def test_numbers_outside_both_tolerances_are_wrong(number: float, above: bool) -> None:
    distance = 0.02 * number + 0.02
    wrong = number + distance if above else number - distance
    assert grade(repr(wrong), repr(number)).reward == 0
