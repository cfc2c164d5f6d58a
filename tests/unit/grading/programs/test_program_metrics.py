"""The verdict on a prediction, also on hostile ones."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.grading.programs import (
    ProgramError,
    ProgramVerdict,
    compare,
    execute,
    execution_accuracy,
    parse,
    program_accuracy,
    step_overlap,
)

GOLD = "subtract(5829, 5735), divide(#0, 5735)"
ANSWER = 0.01639
TABLE = [["", "2009"], ["net sales", "5829"]]
FRAGMENTS = [
    *("add(", "divide(", "exp(", "greater(", "table_max(", "table_sum(", "(", ")", ", ", ",", "#0", "#1", "#9", "EOF"),
    *(
        " ",
        "\n",
        "+",
        "-",
        "*",
        "/",
        "5735",
        "5829",
        "1e9",
        "1e999",
        "5%",
        "const_100",
        "none",
        "net sales",
        "\u00e9",
        "\u0665",
    ),
]
TEXTS = st.text(max_size=80) | st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)
SQUARINGS = ", ".join(["exp(1e9, 1e9)", *(f"exp(#{k}, #{k})" for k in range(62))])


def _with_digits(zero: int) -> str:
    """The gold program in the digits of another script."""
    return GOLD.translate({ord("0") + digit: zero + digit for digit in range(10)})


ATTACKS = {
    "tower of powers": SQUARINGS,
    "tower of powers, nested": "exp(9, " * 60 + "9" + ")" * 60,
    "small tower of powers": ", ".join(["exp(1.1, 1.1)", *(f"exp(#{k}, #{k})" for k in range(62))]),
    "degree 2^63": ", ".join(["multiply(5829, 5735)", *(f"multiply(#{k}, #{k})" for k in range(62))]),
    "fractions of sums": ", ".join(
        ["add(5829, 5735)", *(f"{('divide', 'add')[k % 2]}(#{k}, {(5829, 5735)[k % 3 % 2]})" for k in range(62))]
    ),
    "10,000 steps": ", ".join(["add(1, 2)"] * 10_000),
    "10,000 infix steps": "1" + " + 1" * 10_000,
    "100,000 calls deep": "add(" * 100_000,
    "100,000 brackets deep": "(" * 100_000 + "1" + ")" * 100_000,
    "4,000 brackets deep": "(" * 2_000 + "1 + 2" + ")" * 2_000,
    "4,000 opened": "(" * 4_000,
    "calls deep": "add(1, " * 580,
    "4,000 digits": f"add({'9' * 4_000}, 1)",
    "a million digits": f"add({'9' * 1_000_000}, 1)",
    "digits in groups": "add(" + "1," * 2_000,
    "exponent of 4,000 digits": f"add(1e{'9' * 4_000}, 1)",
    "reference of 4,000 digits": f"add(1, 2), add(#{'9' * 4_000}, 1)",
    "Arabic digits": _with_digits(0x660),
    "full-width digits": _with_digits(0xFF10),
    "superscripts": "subtract(5829\u00b2, 5735)",
    "blanks": "add(1" + " " * 4_000 + ", 2)",
    "blanks before brackets": "add" + " " * 4_080,
    "commas": ", " * 2_000,
    "endings": "EOF " * 1_000,
    "table steps without end": "table_max(" * 400,
    "half a surrogate pair": "table_max(\ud800, none)",
    "null": "add(1, \x00)",
    "nan": "add(nan, 1)",
    "infinity": "add(inf, 1)",
    "Python": "__import__('os').system('true')",
}


def test_both_metrics_with_the_reason_for_a_miss() -> None:
    assert compare(GOLD, GOLD, TABLE, ANSWER) == ProgramVerdict(ANSWER, True, True, "")
    near = compare(GOLD, GOLD, TABLE, ANSWER + 1e-5)
    assert (near.executed, near.execution, near.program) == (ANSWER, False, True), "to the fifth decimal, not nearly"
    right_by_luck = compare("add(0, 0.01639)", GOLD, TABLE, ANSWER)
    assert right_by_luck.execution and not right_by_luck.program
    assert right_by_luck.reason == "Not equivalent: step #0 uses a number or row that the expected program does not."
    in_percent = compare(f"{GOLD}, multiply(#1, 100)", GOLD, TABLE, ANSWER)
    assert (in_percent.executed, in_percent.execution, in_percent.program) == (1.63906, False, False)
    assert in_percent.reason.startswith("The result 1.63906 is not the expected one. Not equivalent: ")
    unused_step = compare(f"divide(5735, #0), {GOLD}", GOLD, TABLE, ANSWER)
    assert unused_step == ProgramVerdict(
        None, False, False, "Not a program. Character 13: #0 is not the result of an earlier step."
    )
    fails_beside = compare("subtract(5735, 5735), divide(5735, #0), subtract(5829, 5735), #2 / 5735", GOLD, [], ANSWER)
    assert fails_beside == ProgramVerdict(None, False, True, "No result. Step #1: division by zero.")


def test_words_are_answers_too() -> None:
    assert compare("greater(2, 1)", "greater(2, 1)", [], "yes") == ProgramVerdict("yes", True, True, "")
    assert compare("greater(1, 2)", "greater(2, 1)", [], "yes").reason.startswith("The result no is not")
    assert not execution_accuracy("greater(2, 1)", 1.0, [])


@pytest.mark.parametrize("predicted", ["subtract(0.5, 0)", "multiply(0.5, const_100)", "divide(50, 100.01)"])
def test_execution_accuracy_is_exact(predicted: str) -> None:
    expected = predicted.startswith("subtract")
    assert execution_accuracy(predicted, 0.5, []) is expected


def test_broken_gold_is_an_error() -> None:
    with pytest.raises(ProgramError):
        compare(GOLD, "divide(1", TABLE, ANSWER)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.timeout(30)  # a guard against hanging, not a measurement
def test_hostile_predictions_cost_no_time_and_win_nothing(name: str) -> None:
    attack = ATTACKS[name]
    verdict = compare(attack, GOLD, TABLE, ANSWER)
    overlap = step_overlap(attack, GOLD)
    assert not verdict.execution and not verdict.program and overlap == 0
    assert 0 < len(verdict.reason) < 300 and verdict.reason.isprintable()


@pytest.mark.timeout(30)  # a guard against hanging, not a measurement
def test_a_long_program_against_itself_costs_no_time() -> None:
    for name in ("degree 2^63", "fractions of sums", "small tower of powers"):
        assert program_accuracy(ATTACKS[name], ATTACKS[name])


@given(TEXTS)
def test_no_text_raises(text: str) -> None:
    verdict = compare(text, GOLD, TABLE, ANSWER)
    assert verdict.reason or (verdict.execution and verdict.program)
    assert execution_accuracy(text, ANSWER, TABLE) == verdict.execution
    assert program_accuracy(text, GOLD) == verdict.program
    assert 0 <= step_overlap(text, GOLD) <= 1
    try:
        program = parse(text)
    except ProgramError as error:
        assert error.position is not None and 0 <= error.position <= len(text)
        return
    assert parse(str(program)) == program
    try:
        result = execute(program, TABLE)
    except ProgramError as error:
        assert error.step is not None and verdict.executed is None
        return
    assert result == verdict.executed and (isinstance(result, str) or math.isfinite(result))
