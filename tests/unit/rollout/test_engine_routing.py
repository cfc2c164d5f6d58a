from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.rollout.replica_choice import BLOCK, Router, slack

SYSTEM = tuple(range(1000, 1000 + 5 * BLOCK))


def question(number: int) -> tuple[int, ...]:
    return (*SYSTEM, *range(number * 10_000, number * 10_000 + 3 * BLOCK))


def test_an_episode_stays_where_its_cache_is_whatever_the_load() -> None:
    router = Router(3)
    home = router.choose("a", question(1), {0: 0, 1: 0, 2: 0})
    for load in (0, 100, 100_000):
        assert router.choose("a", question(1) + (7,) * load, {0: 1, 1: 1, 2: 1, home: load}) == home


def test_an_episode_whose_replica_is_left_out_gets_another_and_stays_there() -> None:
    router = Router(2)
    assert router.choose("a", question(1), {0: 0, 1: 0}) == 0
    assert router.choose("a", question(1), {1: 9}) == 1
    assert router.choose("a", question(1), {0: 0, 1: 9}) == 1


def test_members_of_a_group_go_together_and_groups_are_spread() -> None:
    router = Router(4)
    loads = dict.fromkeys(range(4), 40)
    homes: dict[int, set[int]] = {}
    for group in range(24):
        for member in range(6):
            home = router.choose(f"{group}/{member}", question(group), loads)
            loads[home] += 1
            homes.setdefault(group, set()).add(home)
    assert max(loads.values()) - min(loads.values()) <= slack(max(loads.values())) + 1
    assert sum(len(replicas) == 1 for replicas in homes.values()) >= 16, homes


def test_idle_replicas_are_used_before_groups_are_kept_together() -> None:
    router = Router(2)
    loads = {0: 0, 1: 0}
    for member in range(6):
        loads[router.choose(f"0/{member}", question(0), loads)] += 1
    assert max(loads.values()) - min(loads.values()) <= slack(0) + 1


@pytest.mark.parametrize("least", [0, 7, 8, 100])
def test_a_replica_that_is_loaded_above_the_slack_loses_its_preference(least: int) -> None:
    router = Router(2)
    assert router.choose("a", question(1), {0: 0, 1: 0}) == 0
    assert router.choose("b", question(1), {0: least + slack(least), 1: least}) == 0
    assert router.choose("c", question(1), {0: least + slack(least) + 1, 1: least}) == 1


def test_a_few_common_tokens_decide_nothing() -> None:
    router = Router(2)
    common = tuple(range(BLOCK - 1))
    assert router.choose("a", (*common, 1, 2, 3), {0: 0, 1: 0}) == 0
    assert router.choose("b", (*common, 4, 5, 6), {0: 1, 1: 0}) == 1


@given(
    st.integers(1, 5).flatmap(
        lambda replicas: st.lists(
            st.tuples(
                st.integers(0, 20),
                st.integers(0, 5),
                st.lists(st.integers(0, 40), min_size=replicas, max_size=replicas),
            ),
            max_size=40,
        )
    )
)
def test_choices_are_repeatable_and_new_episodes_never_go_above_the_slack(
    steps: list[tuple[int, int, list[int]]],
) -> None:
    def play() -> list[int]:
        chosen = []
        router, homes = Router(5), dict[str, int]()
        for episode, group, loads in steps:
            by_replica = dict(enumerate(loads))
            home = router.choose(str(episode), question(group), by_replica)
            if str(episode) not in homes:
                assert by_replica[home] <= min(loads) + slack(min(loads))
            assert homes.setdefault(str(episode), home) == home
            chosen.append(home)
        return chosen

    assert play() == play()
