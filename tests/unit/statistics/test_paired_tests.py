from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.statistics import clustered_mean, exact_mcnemar, holm, paired_difference
from finqa_cli.statistics.intervals import two_sided


@pytest.mark.parametrize(
    ("first", "second", "p_value"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (3, 3, 1.0),
        (0, 8, 2 / 2**8),
        (1, 8, 2 * (1 + 9) / 2**9),
        (5, 15, 0.041389465332),  # 2 * sum of C(20, i) for i <= 5, over 2^20
        (300, 400, 0.000176),
        (4950, 5050, 0.322174199795312),  # in time linear in the questions; as scipy.stats.binomtest has it
    ],
)
def test_mcnemar_is_the_binomial_of_the_questions_that_changed(first: int, second: int, p_value: float) -> None:
    assert exact_mcnemar(first, second) == pytest.approx(p_value, rel=2e-2 if first == 300 else 1e-9)
    assert exact_mcnemar(second, first) == exact_mcnemar(first, second)


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.5 times 4, 3, 2, 1, and never below an earlier one.
    adjusted = holm({"a": 0.03, "b": 0.01, "c": 0.5, "d": 0.02})
    assert adjusted == {"a": pytest.approx(0.06), "b": pytest.approx(0.04), "c": 0.5, "d": pytest.approx(0.06)}
    assert holm({}) == {} and list(adjusted) == ["a", "b", "c", "d"]


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=12))
def test_holm_keeps_the_order_and_lies_between_the_raw_value_and_bonferroni(p_values: dict[str, float]) -> None:
    adjusted = holm(p_values)
    for name, value in p_values.items():
        assert value <= adjusted[name] <= min(1.0, len(p_values) * value) + 1e-12
    for one in p_values:
        for other in p_values:
            assert p_values[one] >= p_values[other] or adjusted[one] <= adjusted[other]


def test_a_difference_by_hand() -> None:
    # Differences +1 0 | 0 -1 | +1 +1 in three companies of two: mean 1/3, residual sums 1/3, -5/3, 4/3.
    paired = paired_difference([1, 1, 0, 0, 1, 1], [0, 1, 0, 1, 0, 0], list("aabbcc"))
    error = math.sqrt((1 + 25 + 16) / 9 / (2 / 3) / 36)
    assert paired.difference == pytest.approx(1 / 3) and paired.standard_error == pytest.approx(error)
    assert paired.p_value == pytest.approx(two_sided(paired.difference / error, 2))
    assert (paired.first_better, paired.second_better, paired.questions, paired.clusters) == (3, 1, 6, 3)
    assert paired.mcnemar == pytest.approx(2 * (1 + 4) / 2**4)


SCORES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from("abcde")),
    min_size=1,
    max_size=30,
)


@given(SCORES)
def test_swapping_the_two_swaps_the_signs_and_nothing_else(rows: list[tuple[float, float, str]]) -> None:
    first, second, names = (list(column) for column in zip(*rows, strict=True))
    paired, swapped = paired_difference(first, second, names), paired_difference(second, first, names)
    assert -1 <= paired.low <= paired.difference <= paired.high <= 1 and 0 <= paired.p_value <= 1
    assert (swapped.difference, swapped.low, swapped.high) == pytest.approx(
        (-paired.difference, -paired.high, -paired.low), abs=1e-12
    )
    assert swapped.p_value == pytest.approx(paired.p_value) and swapped.mcnemar == paired.mcnemar
    assert (swapped.first_better, swapped.second_better) == (paired.second_better, paired.first_better)


@given(SCORES)
def test_an_interval_without_0_and_a_p_value_below_5_percent_are_the_same(rows: list[tuple[float, float, str]]) -> None:
    first, second, names = (list(column) for column in zip(*rows, strict=True))
    paired = paired_difference(first, second, names)
    spread = clustered_mean([one - other for one, other in zip(first, second, strict=True)], names)
    if spread.clusters > 1 and spread.error > 1e-9 and abs(paired.p_value - 0.05) > 1e-9:
        assert (paired.p_value < 0.05) == (paired.low > 0 or paired.high < 0)


def test_no_change_at_all_is_no_proof_of_no_change() -> None:
    same = paired_difference([1.0] * 12, [1.0] * 12, list("aabbccddeeff"))
    assert (same.difference, same.p_value, same.mcnemar, same.correlation) == (0.0, 1.0, 1.0, None)
    assert same.high == -same.low == pytest.approx(1 - 0.025 ** (1 / 6))


def test_all_companies_changed_alike() -> None:
    paired = paired_difference([1.0] * 6, [0.0] * 6, list("aabbcc"))
    assert paired.difference == 1.0 and paired.p_value == 2 / 2**3 and 0 > paired.low > -1
    alone = paired_difference([1.0, 1.0], [0.0, 0.0], ["a", "a"])
    assert (alone.p_value, alone.low, alone.high) == (1.0, -1.0, 1.0), "one company says nothing about others"


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 and 1 scores"):
        paired_difference([1.0, 0.0], [1.0], ["a", "b"])
    with pytest.raises(ValueError, match="0 values"):
        paired_difference([], [], [])
