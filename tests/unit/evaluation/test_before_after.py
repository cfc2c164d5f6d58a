"""The rows of two evaluations beside each other, for the terminal and for reports."""

from __future__ import annotations

from typing import Any

import pytest

from finqa_cli.evaluation.before_after import LARGEST_GROUP, before_after_rows

FACTS: dict[str, Any] = {
    **{"accuracy": 0.5, "accuracy_interval": [0.25, 0.75], "turns_mean": 4.0, "temperature": 0.0},
    **{"quoted_years": None, "sql_error_rate": None, "measures": {}},
}


def test_rows_are_those_that_one_of_the_two_has() -> None:
    after = {**FACTS, "accuracy": 1.0, "sql_error_rate": 0.125, "temperature": 0.6}
    assert before_after_rows(FACTS, after) == [
        ["accuracy at temperature 0.6", "0.500 [0.250, 0.750]", "1.000 [0.250, 0.750]"],
        ["SQL errors per query", "-", "12.5 %"],
        ["turns per episode", "4.00", "4.00"],
    ]


def test_measures_of_the_environment_follow_without_large_groups() -> None:
    large = {str(at): at for at in range(LARGEST_GROUP + 1)}
    before = {**FACTS, "measures": {"brier": 0.25, "by_date": large}}
    after = {**FACTS, "measures": {"pass": {"1": 0.5}}}
    assert before_after_rows(before, after)[2:] == [["brier", "0.25", "-"], ["pass.1", "-", "0.5"]]


def test_what_is_no_record_is_an_error() -> None:
    with pytest.raises(KeyError):
        before_after_rows({}, FACTS)
