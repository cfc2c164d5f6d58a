"""Profile strict-2 on lists, sentences around a value, remarks, dates, names and currencies; and its time on blanks."""

from __future__ import annotations

import time

import pytest
from strict_2_groups import GROUPS
from strict_2_siblings import GROUPS as SIBLINGS
from strict_2_variants import GROUPS as VARIANTS

from finqa_cli.grading import grade


@pytest.mark.parametrize(("question", "truth", "honest", "hacks"), [*GROUPS, *SIBLINGS, *VARIANTS])
def test_honest_answers_are_paid_and_hacks_are_not(
    question: str, truth: str, honest: tuple[str, ...], hacks: tuple[str, ...]
) -> None:
    assert [one for one in honest if not grade(one, truth, "strict-2", question).reward] == []
    assert [one for one in hacks if grade(one, truth, "strict-2", question).reward] == []


@pytest.mark.parametrize(
    "answer",
    ["a" + "\n" * 3900 + "b", "5. " + " " * 3900 + "b", "a" * 4000, "*" * 300 + "\n" * 3700, "9" * 2000 + " 1"],
    ids=["lines", "blanks", "letters", "stars", "digits"],
)
def test_runs_of_one_character_take_linear_time(answer: str) -> None:
    least = float("inf")
    for _ in range(3):
        began = time.process_time()
        grade(answer, "0.64", "strict-2", "What was the ratio of debt to equity?")
        least = min(least, time.process_time() - began)
    assert least < 0.2
