"""Sessions get processor time in equal parts while they ask for it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.environments.openenv_finqa.server.fair_queue import FairQueue


def test_sessions_take_turns() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "b2", "c1"):
        queue.put(item[0], item, 1.0)
    assert [queue.take() for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    with pytest.raises(IndexError):
        queue.take()


def test_a_session_that_used_little_is_ahead_of_those_that_used_much() -> None:
    queue: FairQueue[str] = FairQueue()
    for bomber in range(5):
        queue.put(bomber, f"first of {bomber}", 1.0)
    for _ in range(5):
        queue.take()
    for bomber in range(5):
        queue.put(bomber, f"second of {bomber}", 1.0)
    queue.put("honest", "honest", 1.0)
    assert queue.take() == "honest"


def test_what_was_not_used_up_is_given_back() -> None:
    queue: FairQueue[str] = FairQueue()
    for session in ("dear", "cheap"):
        queue.put(session, session, 1.0)
        queue.take()
    queue.refund("cheap", 0.9)
    queue.put("dear", "dear again", 1.0)
    queue.put("cheap", "cheap again", 1.0)
    assert [queue.take(), queue.take()] == ["cheap again", "dear again"]


def test_time_without_work_puts_nobody_behind_and_is_no_credit() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.put("busy", "b", 100.0)
    queue.forget()  # it still has work: nothing is forgotten
    queue.put("new", "n", 1.0)
    assert [queue.take(), queue.take()] == ["b", "n"]
    queue.put("busy", "b", 1.0)
    queue.put("new", "n", 1.0)
    assert [queue.take(), queue.take()] == ["n", "b"]
    queue.forget()
    queue.put("busy", "b", 1.0)
    queue.put("new", "n", 1.0)
    assert [queue.take(), queue.take()] == ["b", "n"]


@given(costs=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6), rounds=st.integers(5, 40))
def test_shares_differ_by_two_items_at_most(costs: list[float], rounds: int) -> None:
    """The bound of start-time fair queueing, for sessions that always have a query and need all of its cost."""
    queue: FairQueue[int] = FairQueue()
    for session, cost in enumerate(costs):
        queue.put(session, session, cost)
    used: Counter[int] = Counter()
    shares = [0.0] * len(costs)
    for _ in range(rounds * len(costs)):
        session = queue.take()
        used[session] += 1
        shares[session] += costs[session]
        queue.put(session, session, costs[session])
        assert max(shares) - min(shares) <= 2 * max(costs) + 1e-9
