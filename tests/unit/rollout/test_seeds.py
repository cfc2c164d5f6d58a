from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.rollout.seeds import derive, draw


def test_derived_seeds_depend_on_every_part_and_stay_the_same() -> None:
    assert derive(0, "attempt", 1) == derive(0, "attempt", 1)
    assert len({derive(0, "a", 1), derive(1, "a", 1), derive(0, "b", 1), derive(0, "a", 2), derive(0, "a1")}) == 5
    assert 0 <= derive(2**70, "x") < 2**63


@given(length=st.integers(1, 30), seed=st.integers(0, 9), counts=st.lists(st.integers(0, 40), max_size=6))
def test_the_walk_is_a_function_of_its_position(length: int, seed: int, counts: list[int]) -> None:
    items = list(range(length))
    position = 0
    for count in counts:
        chosen, after = draw(items, seed=seed, position=position, count=count)
        assert chosen == draw(items, seed=seed, position=position, count=count)[0]
        assert len(set(chosen)) == len(chosen) == min(count, length)
        assert after >= position
        position = after


def test_an_epoch_visits_every_item_once() -> None:
    items = list("abcdefg")
    position, seen = 0, Counter[str]()
    for _ in range(7):
        chosen, position = draw(items, seed=3, position=position, count=1)
        seen.update(chosen)
    assert seen == Counter(items) and position == 7
    assert draw([], seed=0, position=5, count=3) == ((), 5)
