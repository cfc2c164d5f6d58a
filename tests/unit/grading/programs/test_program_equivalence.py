"""Program accuracy and the share of steps, against hand-made cases and exact arithmetic."""

from __future__ import annotations

import hashlib
import random
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from program_trees import LITERALS, ROOTS, Node, Tree, flat, literals, nested, rearranged, value

from finqa_cli.grading.programs import ProgramError, program_accuracy, step_overlap
from finqa_cli.grading.programs.equivalence import PRIME


@pytest.mark.parametrize(
    ("gold", "predicted"),
    [
        ("add(1, 2)", "add(2, 1)"),
        ("subtract(9, 8), divide(#0, 8)", "divide(subtract(9, 8), 8)"),
        ("subtract(9, 8), divide(#0, 8)", "divide(9, 8), divide(8, 8), subtract(#0, #1)"),
        ("divide(6, 2), multiply(#0, const_100)", "multiply(const_100, 6), divide(#0, 2)"),
        ("add(1, 2), add(#0, 3), divide(#1, const_3)", "add(3, 2), add(#0, 1), divide(#1, const_3)"),
        ("add(1, 2), divide(3, 1)", "divide(3, 1)"),
        ("divide(3, 1)", "divide(1, 3), multiply(3, 3), divide(3, 1)"),
        ("table_max(a, none), table_min(a, none), subtract(#0, #1)", "table_min(a, none), table_max(a, none), #1 - #0"),
        ("divide(9, 8), divide(1, 5), exp(#0, #1)", "divide(1, 5), divide(9, 8), exp(#1, #0)"),
        ("greater(3, 2)", "subtract(3, 2), subtract(2, 2), greater(#0, #1)"),
    ],
)
def test_rearranged_programs_are_equal(gold: str, predicted: str) -> None:
    assert program_accuracy(predicted, gold)


@pytest.mark.parametrize(
    ("gold", "predicted"),
    [
        ("subtract(1, 2)", "subtract(2, 1)"),
        ("divide(5%, 2)", "divide(0.05, 2)"),
        ("divide(const_100, 2)", "divide(100, 2)"),
        ("divide(1000, 2)", "divide(1,000, 2)"),
        ("add(2, 2)", "multiply(2, 2)"),
        ("multiply(3, 3)", "exp(3, 2)"),
        ("add(1, 2)", "add(5, 5), add(1, 2)"),
        ("add(1, 2), add(#0, 3)", "add(1, 2)"),
        ("greater(3, 2)", "greater(2, 3)"),
        ("greater(3, 2)", "subtract(3, 2)"),
        ("greater(3, 2), add(#0, 3)", "greater(3, 2), add(#0, 3)"),
        ("subtract(2, 2), divide(3, #0)", "subtract(2, 2), divide(3, #0)"),
        ("exp(3, 2)", "exp(2, 3)"),
        ("table_max(a, none)", "table_max(b, none)"),
        ("table_max(a, none)", "table_min(a, none)"),
        ("add(1, 2)", "add(1, 2"),
        ("add(1, 2)", ""),
    ],
)
def test_other_formulas_and_other_writings_of_a_number_are_not(gold: str, predicted: str) -> None:
    assert not program_accuracy(predicted, gold)


def test_a_gold_program_that_cannot_be_read_is_an_error_not_a_miss() -> None:
    for metric in (program_accuracy, step_overlap):
        with pytest.raises(ProgramError):
            metric("add(1, 2)", "add(1, 2")


@pytest.mark.parametrize(
    ("predicted", "share"),
    [
        ("subtract(9, 8), divide(#0, 8)", 1.0),
        ("divide(subtract(9, 8), 8)", 1.0),
        ("subtract(9, 8)", 0.5),
        ("add(1, 1), subtract(9, 8), divide(#1, 7)", 0.5),
        ("subtract(9, 8), subtract(9, 8), subtract(9, 8)", 0.5),
        ("subtract(8, 9), divide(#0, 8)", 0.0),
        ("divide(1, subtract(1, 1))", 0.0),
        ("no program", 0.0),
    ],
)
def test_overlap_is_the_share_of_gold_steps_that_are_computed(predicted: str, share: float) -> None:
    assert step_overlap(predicted, "subtract(9, 8), divide(#0, 8)") == share


def test_undefined_gold_steps_are_never_computed() -> None:
    text = "subtract(2, 2), divide(3, #0)"
    assert step_overlap(text, text) == 0.5


def is_identity(left: Tree, right: Tree, seed: int) -> bool:
    """Whether two formulas have one exact value at random numbers; for formulas this small, whether they are equal."""
    rng = random.Random(seed)
    numbers = {literal: Fraction(rng.randrange(10**12, 10**13)) for literal in LITERALS}
    try:
        return value(left, numbers) == value(right, numbers)
    except ZeroDivisionError:
        assume(False)
        raise


@given(ROOTS, st.integers(0, 2**32))
def test_a_rearranged_formula_is_equal(root: Node, seed: int) -> None:
    other = rearranged(root)
    assert isinstance(other, Node) and is_identity(root, other, seed)
    assert program_accuracy(flat(other), flat(root))
    assert program_accuracy(nested(other), flat(root))
    assert step_overlap(flat(root), flat(root)) == 1


@given(ROOTS, st.sampled_from(LITERALS), st.sampled_from([*LITERALS, "8"]), st.integers(0, 2**32))
def test_a_changed_constant_is_equal_only_where_it_does_not_matter(root: Node, old: str, new: str, seed: int) -> None:
    changed = replaced(root, old, new)
    if not literals(changed) <= literals(root):
        assert not program_accuracy(flat(changed), flat(root))
    else:
        assert program_accuracy(flat(changed), flat(root)) == is_identity(root, changed, seed)


@given(ROOTS, ROOTS, st.integers(0, 2**32))
def test_any_two_formulas_are_compared_exactly(gold: Node, predicted: Node, seed: int) -> None:
    expected = literals(predicted) <= literals(gold) and is_identity(gold, predicted, seed)
    assert program_accuracy(flat(predicted), flat(gold)) == expected


def replaced(tree: Node, old: str, new: str) -> Node:
    def inner(part: Tree) -> Tree:
        if isinstance(part, str):
            return new if part == old else part
        return replaced(part, old, new)

    return Node(tree.operation, inner(tree.left), inner(tree.right))


def test_the_field_is_the_documented_one() -> None:
    start = int.from_bytes(hashlib.sha256(b"finqa").digest(), "big") | 1 << 255 | 1
    candidates = range(start, PRIME + 1, 2)
    assert [number for number in candidates if pow(3, number - 1, number) == 1] == [PRIME]
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 5, 7, 11, 13))
