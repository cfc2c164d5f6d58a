"""Why an attempt is wrong, by the values of its answer and the right one, and by the tables that it looked at."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.grading.items import read_numbers
from finqa_cli.statistics import REASONS, failure_counts, read_outcome


def attempt(answer: str, truth: str, *, table: str = "income", right: tuple[str, ...] = ("income",)) -> dict[str, Any]:
    """The record of an attempt that described a table and submitted a wrong answer."""
    steps = [("get_table_info", {"company": "acme", "table": table}), ("submit_answer", {"answer": answer})]
    turns = [
        {
            "tool_call": {"name": name, "arguments": arguments},
            "observation": {"done": name == "submit_answer", "is_error": False},
            "text": "",
            "parse_error": "",
            "prompt_tokens": None,
            "completion_tokens": None,
        }
        for name, arguments in steps
    ]
    return {
        "task": {"id": "q", "cluster": "acme", "kind": "lookup", "split": "test", "prompt": "?"},
        **{
            "member": 0,
            "status": "completed",
            "reward": 0.0,
            "components": {"correct": 0.0},
            "tools": ["submit_answer"],
        },
        **{"turns": turns, "explanation": "", "error": "", "seconds": 1.0, "truth": truth, "right_tables": list(right)},
        "values": {"answer": read_numbers(answer), "truth": read_numbers(truth)},
    }


@pytest.mark.parametrize(
    ("answer", "truth", "reason"),
    [
        ("-45.2", "45.2", "sign"),
        ("12.5", "12.5%", "percent"),
        ("0.125", "12.5", "percent"),
        ("12,428,500", "12,428.5", "scale"),
        ("12.4285", "12,428.5", "scale"),
        ("$12,428.5 million", "12,428,500,000", "form"),
        ("1499.9", "1500", "form"),
        ("-1.5", "1,500", "scale"),
        ("17", "45.2", "wrong_answer"),
        ("0", "45.2", "wrong_answer"),
        ("not in the data", "45.2", "wrong_answer"),
        ("", "45.2", "no_answer"),
    ],
)
def test_a_wrong_value_has_its_reason(answer: str, truth: str, reason: str) -> None:
    assert read_outcome(attempt(answer, truth)).reason == reason and reason in REASONS


def test_another_value_from_another_table_is_told_from_one_of_the_right_table() -> None:
    assert read_outcome(attempt("17", "45.2", table="cash_flow")).reason == "wrong_table"
    assert read_outcome(attempt("17", "45.2", table="cash_flow", right=())).reason == "wrong_answer", "it is unknown"
    assert read_outcome(attempt("-45.2", "45.2", table="cash_flow")).reason == "sign", "the value says more"
    older = {name: value for name, value in attempt("17", "45.2").items() if name not in ("right_tables", "values")}
    assert failure_counts([read_outcome(older)]) == {"wrong_answer": 1}


@given(st.floats(0.01, 1e6), st.sampled_from([1e3, 1e6, 1e9]), st.booleans())
def test_any_scale_is_found_in_both_directions(value: float, factor: float, up: bool) -> None:
    given, right = (value * factor, value) if up else (value, value * factor)
    record = attempt("1", "2") | {"values": {"answer": f"{given:f}", "truth": f"{right:f}"}}
    assert read_outcome(record).reason in ("scale", "form", "wrong_answer")
    if min(given, right) > 1:
        assert read_outcome(record).reason == "scale"


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_recorded_values_are_read(given: str, right: str) -> None:
    assert read_outcome(attempt("1", "2") | {"values": {"answer": given, "truth": right}}).reason in REASONS
