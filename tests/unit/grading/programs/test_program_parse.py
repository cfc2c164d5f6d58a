"""Texts of programs: the three notations, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from program_trees import ROOTS, Node, flat, infix, nested

from finqa_cli.grading.programs import MAX_CHARACTERS, MAX_STEPS, Program, ProgramError, Reference, Step, execute, parse


def test_the_flat_form_is_a_list_of_steps() -> None:
    text = "subtract(5,829, 5735), divide(#0, 5,735), table_max(net sales, u.s./canada - total, none)"
    with pytest.raises(ProgramError, match="table_max takes a row's name"):
        parse(text)
    program = parse("subtract(5,829, -57.35), divide(#0, .5%), table_max(sales u.s./canada - net, none)")
    assert program == Program(
        (
            Step("subtract", "5,829", "-57.35"),
            Step("divide", Reference(0), ".5%"),
            Step("table_max", "sales u.s./canada - net", "none"),
        )
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("add(1, 2), EOF", "add(1, 2)"),
        (" add ( 1,\n 2 ) ,  divide( #0, const_m1 ) EOF\n", "add(1, 2), divide(#0, const_m1)"),
        ("divide(subtract(2457, 2156), 2457)", "subtract(2457, 2156), divide(#0, 2457)"),
        ("divide(1, table_sum(net sales, none))", "table_sum(net sales, none), divide(1, #0)"),
        (
            "divide(subtract(2457, 2156), 2457) * 100",
            "subtract(2457, 2156), divide(#0, 2457), multiply(#1, 100)",
        ),
        ("1 - 2 - 3 * 4", "subtract(1, 2), multiply(3, 4), subtract(#0, #1)"),
        ("add(1 +2, (3 - -4) / 5%)", "add(1, 2), subtract(3, -4), divide(#1, 5%), add(#0, #2)"),
        ("add(1, 2), #0 * 100", "add(1, 2), multiply(#0, 100)"),
    ],
)
def test_every_notation_becomes_the_flat_form(text: str, expected: str) -> None:
    assert str(parse(text)) == expected


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "found the end"),
        ("  ", 2, "found the end"),
        ("94", 2, "no operation"),
        ("((94))", 6, "no operation"),
        ("none", 0, "expected an operation"),
        ("add(1, 2", 0, "never closed"),
        ("add(1, 2))", 9, "never opened"),
        ("add(1)", 5, "two arguments"),
        ("add(1,2)", 7, "two arguments"),
        ("add(1, 2, 3)", 8, "too many"),
        ("(1, 2)", 2, "too many"),
        ("add(1, 2) add(3, 4)", 10, "expected an operator"),
        ("add(1, 2), ", 11, "found the end"),
        ("add(1, two)", 7, "found 'two)'"),
        ("add(1, $5)", 7, "expected an operation"),
        ("add(1, \u0665)", 7, r"found '\u0665)'"),
        ("add(1, 1_000)", 8, "expected an operator"),
        ("add(1, nan)", 7, "found 'nan"),
        ("Add(1, 2)", 0, "no operation 'Add'"),
        ("sqrt(4, 2)", 0, "no operation 'sqrt'"),
        ("-add(1, 2)", 0, "expected an operation"),
        ("add(#0, 1)", 4, "#0 is not the result of an earlier step"),
        ("add(add(1, 2), #0)", 15, "#0 is not the result of an earlier step"),
        ("add(1, 2), add(#1, 1)", 15, "not the result of an earlier step"),
        ("add(1, 2), add(#-1, 1)", 15, "expected an operation"),
        ("add(1, 2), add(#99999999999999999999, 1)", 15, "expected an operation"),
        ("add(add(1, 2), 3), add(#0, 1)", 17, "each item is one operation"),
        ("add(1, 2), add(add(#0, 2), 3)", 29, "each item is one operation"),
        ("add(1, 2), #0", 13, "each item is one operation"),
        ("add(1, 2), table_max(#0, none)", 11, "not the result of a step"),
        ("table_max(net sales)", 0, "table_max takes"),
        ("table_max(net ( loss ), none)", 0, "table_max takes"),
        ("table_max(, none)", 0, "table_max takes"),
        ("table_max(net sales, none", 0, "table_max takes"),
    ],
)
def test_what_is_no_program_is_refused_with_place_and_reason(text: str, position: int, reason: str) -> None:
    with pytest.raises(ProgramError) as caught:
        parse(text)
    assert caught.value.position == position and caught.value.step is None
    assert reason in caught.value.reason and str(caught.value) == f"Character {position}: {caught.value.reason}"


def test_steps_and_characters_are_limited() -> None:
    longest = ", ".join(["add(1, 2)"] * MAX_STEPS)
    assert len(parse(longest).steps) == MAX_STEPS
    with pytest.raises(ProgramError, match=f"more than {MAX_STEPS} operations"):
        parse(f"{longest}, add(1, 2)")
    assert parse("add(1, 2)" + " " * (MAX_CHARACTERS - 9))
    with pytest.raises(ProgramError, match=f"longer than {MAX_CHARACTERS} characters"):
        parse("add(1, 2)" + " " * (MAX_CHARACTERS - 8))


@given(ROOTS)
def test_the_notations_of_one_formula_are_one_program(root: Node) -> None:
    program = parse(flat(root))
    assert str(program) == flat(root)
    assert parse(nested(root)) == program
    assert parse(infix(root)) == program


@given(ROOTS)
def test_infix_means_what_it_means_in_python(root: Node) -> None:
    try:
        expected = round(float(eval(infix(root).replace(",", ""))), 5)
    except ZeroDivisionError:
        with pytest.raises(ProgramError, match="division by zero"):
            execute(parse(infix(root)), [])
        return
    assert execute(parse(infix(root)), []) == expected
