from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.statistics import k_values, pass_at_k, pass_hat_k


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_both_are_the_share_of_all_choices_of_k_attempts(attempts: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(attempts)))
    choices = list(itertools.combinations(attempts, k))
    right = sum(attempts)
    assert pass_at_k(len(attempts), right, k) == pytest.approx(sum(map(any, choices)) / len(choices))
    assert pass_hat_k(len(attempts), right, k) == pytest.approx(sum(map(all, choices)) / len(choices))


def test_the_example_of_the_codex_paper_is_above_the_biased_estimate() -> None:
    # 1 of 5 right: two attempts hold it with chance 2/5, where 1 - (1 - 1/5)^2 says 0.36.
    assert pass_at_k(5, 1, 2) == pytest.approx(0.4)
    assert pass_hat_k(200, 100, 2) == pytest.approx(100 * 99 / (200 * 199))


@pytest.mark.parametrize("estimate", [pass_at_k, pass_hat_k])
@pytest.mark.parametrize("given", [(4, 5, 1), (4, 2, 5), (4, 2, 0), (0, 0, 1), (4, -1, 1)])
def test_what_cannot_be_is_refused(estimate: Callable[..., float], given: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="attempts right, k ="):
        estimate(*given)


def test_the_ks_that_every_question_allows() -> None:
    assert (
        k_values([]) == []
        and k_values([1, 9]) == [1]
        and k_values([6, 8]) == [1, 2, 4, 6]
        and k_values([8]) == [1, 2, 4, 8]
    )
