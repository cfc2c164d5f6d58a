from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sandboxes.ideal import ideal_schedule, lower_bound_s
from benchmarks.scale.engine_latency import LatencyModel

UNCROWDED = LatencyModel(step_s=0.1, step_s_per_request=0.0)
EPISODES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 20)), min_size=1, max_size=40)


def lengths(episodes: list[tuple[int, int]]) -> list[float]:
    return [sum(UNCROWDED.steps(seed, turn) for turn in range(turns)) * 0.1 for seed, turns in episodes]


@given(EPISODES, st.integers(1, 9))
def test_is_list_scheduling_where_requests_do_not_slow_each_other(
    episodes: list[tuple[int, int]], sandboxes: int
) -> None:
    free = [0.0] * sandboxes
    ends = []
    for length in lengths(episodes):
        ends.append(heapq.heappop(free) + length)
        heapq.heappush(free, ends[-1])
    found = ideal_schedule(UNCROWDED, episodes, sandboxes)
    assert found.seconds == pytest.approx(max(ends))
    assert found.sandbox_share == pytest.approx(sum(lengths(episodes)) / (sandboxes * max(ends)))
    assert found.engine_load == pytest.approx(found.sandbox_share * sandboxes)


@given(EPISODES, st.integers(1, 9))
def test_lies_between_the_bounds(episodes: list[tuple[int, int]], sandboxes: int) -> None:
    least = lower_bound_s(lengths(episodes), sandboxes)
    assert least * (1 - 1e-9) <= ideal_schedule(UNCROWDED, episodes, sandboxes).seconds <= 2 * least


def test_a_crowded_engine_takes_longer() -> None:
    episodes = [(seed, 4) for seed in range(30)]
    crowded = LatencyModel(step_s=0.1, step_s_per_request=0.01)
    assert ideal_schedule(crowded, episodes, 10).seconds > 1.5 * ideal_schedule(UNCROWDED, episodes, 10).seconds
