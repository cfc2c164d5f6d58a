"""Formulas of experiment files: arithmetic and nothing else."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.experiments.experiment_file import FormulaError, calculate, calculate_all

NAMES: dict[str, Any] = {"EPOCHS": 10, "ROWS": 20000, "BATCH": 64, "LR": 1e-6, "WEIGH": True, "MODE": "advantage"}


@pytest.mark.parametrize(
    ("formula", "result"),
    [
        ("=EPOCHS * (ROWS // BATCH)", 3120),
        ("=-EPOCHS + 1", -9),
        ("=LR / 2", 5e-7),
        ("=MODE if WEIGH else 'off'", "advantage"),
        ("=MODE if not WEIGH else 'off'", "off"),
        ("='data/' + MODE", "data/advantage"),
        ("=EPOCHS > 5 and BATCH == 64 or WEIGH", True),
        ("= 7 ", 7),
    ],
)
def test_formulas_are_arithmetic_over_variables(formula: str, result: object) -> None:
    found = calculate(formula, NAMES)
    assert found == result and type(found) is type(result)


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("=UNKNOWN", "there is no variable UNKNOWN"),
        ("=EPOCHS / 0", "has no result: division by zero"),
        ("=EPOCHS +", "is no formula"),
        ("=__import__('os')", "is not allowed in formulas"),
        ("=EPOCHS.real", "is not allowed in formulas"),
        ("=2 ** 99", "is not allowed in formulas"),
        ("='a' * 9", "texts can only be joined with"),
        ("='a' + 1", "has no result"),
        ("=[1]", "is not allowed in formulas"),
        ("=1 < 2 < 3", "is not allowed in formulas"),
        ("=" + "(" * 5000, "is no formula"),
    ],
)
def test_what_is_no_formula_is_told(formula: str, reason: str) -> None:
    with pytest.raises(FormulaError) as raised:
        calculate(formula, NAMES)
    assert reason in str(raised.value)


def test_formulas_are_found_in_tables_and_lists_and_other_texts_stay() -> None:
    tree = {"train": {"group_size": "=BATCH", "names": ["=MODE", "a=b"]}, "rank": 0}
    assert calculate_all(tree, NAMES) == {"train": {"group_size": 64, "names": ["advantage", "a=b"]}, "rank": 0}


@given(st.text(max_size=60))
def test_any_text_is_a_scalar_or_an_error(text: str) -> None:
    with contextlib.suppress(FormulaError):
        assert isinstance(calculate(f"={text}", NAMES), (bool, int, float, str))


@given(st.integers(-999, 999), st.integers(-999, 999), st.integers(1, 99), st.sampled_from(["+", "-", "*", "//", "/"]))
def test_results_are_those_of_python(first: int, second: int, third: int, sign: str) -> None:
    formula = f"({first} {sign} {third}) - {second} * (A + {third})"
    assert calculate(f"={formula}", {"A": 5}) == eval(formula, {"A": 5})
