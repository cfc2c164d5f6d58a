from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.algorithms.admission import admitted_groups, informative_share

SHARES = st.none() | st.floats(0.0, 1.0)


def play(fates: list[bool], target: int, expected: float | None, order: random.Random) -> list[int]:
    """Starts what is admitted and judges the started groups in any order; how many were admitted each time."""
    uninformative: list[int] = []
    admitted = [admitted_groups([], target=target, most=len(fates), expected=expected)]
    running = list(range(admitted[-1]))
    while running:
        number = running.pop(order.randrange(len(running)))
        if fates[number]:
            admitted.append(admitted[-1])
        else:
            uninformative.append(number)
            admitted.append(admitted_groups(uninformative, target=target, most=len(fates), expected=expected))
        running.extend(range(admitted[-2], admitted[-1]))
    return admitted


@given(st.lists(st.booleans(), max_size=80), st.integers(1, 30), SHARES, st.randoms(use_true_random=False))
def test_how_many_groups_start_does_not_depend_on_the_order_in_which_they_end(
    fates: list[bool], target: int, expected: float | None, order: random.Random
) -> None:
    first, second = (play(fates, target, expected, order) for _ in range(2))
    assert first == sorted(first) and first[-1] == second[-1] <= len(fates)
    assert sum(fates[: first[-1]]) >= target or first[-1] == len(fates)


def test_without_a_target_everything_starts() -> None:
    assert admitted_groups([], target=0, most=7, expected=0.5) == 7


def test_a_first_iteration_starts_not_one_more_than_could_be_needed() -> None:
    assert admitted_groups([], target=10, most=99, expected=None) == 10
    assert play([True] * 99, 10, None, random.Random(0))[-1] == 10


def test_what_was_learned_starts_about_enough_at_once() -> None:
    assert admitted_groups([], target=100, most=999, expected=0.5) == 200


@pytest.mark.parametrize(("share", "expected"), [(0.3, None), (0.6, None), (0.9, None), (0.3, 0.3), (0.6, 0.6)])
def test_the_target_is_not_overshot_by_much(share: float, expected: float | None) -> None:
    surplus = []
    for seed in range(40):
        chance = random.Random(seed)
        fates = [chance.random() < share for _ in range(1000)]
        surplus.append(sum(fates[: play(fates, 100, expected, chance)[-1]]) - 100)
    assert min(surplus) >= 0 and sum(surplus) / len(surplus) < 25


@given(st.integers(0, 50), st.integers(0, 50), SHARES)
def test_the_share_is_a_share_and_never_nothing(informative: int, dropped: int, expected: float | None) -> None:
    assert 0.05 <= informative_share(informative, informative + dropped, expected) <= 1.0


def test_experience_outweighs_a_guess() -> None:
    assert informative_share(0, 8, None) == 0.5
    assert informative_share(0, 8, 1.0) == 0.8
