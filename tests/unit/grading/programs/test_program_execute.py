"""Results of programs, and why some have none."""

from __future__ import annotations

import pytest

from finqa_cli.grading.programs import ProgramError, execute, parse

TABLE = [
    ["( in millions )", "2009", "2008"],
    ["net sales", "$ 1,204.5", "$ -32 ( 32 )"],
    ["margin", "5.0% ( 5.0 % )", "15 %"],
    ["text", "12", "n/a"],
    ["brackets", "( 12 )", "3"],
    ["twice", "1", "2"],
    ["twice", "30", "40"],
    ["huge", "1e308", "1e308"],
    ["lonely"],
    [],
]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("subtract(5829, 5735), divide(#0, 5735)", 0.01639),
        ("divide(1, 3)", 0.33333),
        ("add(1,204, .5)", 1204.5),
        ("multiply(6.9%, const_100)", 6.9),
        ("multiply(const_m1, const_1000000)", -1e6),
        ("exp(2, -1)", 0.5),
        ("exp(-8, 2)", 64.0),
        ("greater(2, 1)", "yes"),
        ("greater(1, 1)", "no"),
        ("greater(1, 2), add(1, 2)", 3.0),
        ("table_max(net sales, none)", 1204.5),
        ("table_min(net sales, none)", -32.0),
        ("table_sum(margin, none)", 0.2),
        ("table_average(twice, none)", 35.0),
        ("table_sum(twice, none), divide(#0, 7)", 10.0),
    ],
)
def test_results_are_those_of_the_official_rules(program: str, expected: float | str) -> None:
    assert execute(parse(program), TABLE) == expected


@pytest.mark.parametrize(
    ("program", "step", "reason"),
    [
        ("divide(1, 0)", 0, "division by zero"),
        ("subtract(2, 2), divide(1, #0), add(1, 2)", 1, "division by zero"),
        ("exp(0, -1)", 0, "division by zero"),
        ("exp(-8, 0.5)", 0, "root of a negative number"),
        ("exp(1e9, 1e9)", 0, "too large"),
        ("multiply(1e300, 1e300)", 0, "too large"),
        ("add(1, 1e999)", 0, "too large"),
        ("add(1, 2), multiply(#0, 1e308), subtract(#1, #1)", 1, "too large"),
        ("greater(1, 2), add(#0, 1)", 1, "#0 is 'no', not a number"),
        ("greater(2, 1), greater(#0, #0)", 1, "#0 is 'yes', not a number"),
        ("table_max(gross sales, none)", 0, "no row 'gross sales'"),
        ("table_max(text, none)", 0, "not a number: 'n/a'"),
        ("table_max(brackets, none)", 0, "not a number"),
        ("table_max(lonely, none)", 0, "no cells"),
        ("table_sum(huge, none)", 0, "too large"),
    ],
)
def test_a_step_without_result_is_named_with_the_reason(program: str, step: int, reason: str) -> None:
    with pytest.raises(ProgramError, match=reason) as caught:
        execute(parse(program), TABLE)
    assert caught.value.step == step and caught.value.position is None
