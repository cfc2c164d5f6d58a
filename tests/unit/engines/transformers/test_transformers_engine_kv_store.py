"""What is kept between turns, and what is not used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from finqa_plugins.engines.transformers.kv_store import Entry, KvStore, common_prefix  # noqa: E402


def entry(length: int, start: int = 0) -> Entry:
    return Entry(tuple(range(length)), start, torch.zeros(1, 2, 1, length - start, 1))


def test_the_least_recently_used_entry_goes_first() -> None:
    store = KvStore(budget=3 * entry(10).size)
    for name in "abc":
        store.put(name, entry(10))
    assert store.get("a")
    store.put("d", entry(10))
    assert store.get("b") is None
    assert store.get("a")
    store.put("huge", entry(100))
    assert store.get("huge") is None
    assert len(store) == 3, "an entry that can never fit drops nothing"
    store.keep({"d"})
    assert (len(store), store.size) == (1, entry(10).size)
    store.clear()
    assert (len(store), store.size) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 20)), max_size=40))
def test_the_budget_holds(puts: list[tuple[str, int]]) -> None:
    store = KvStore(budget=30 * 8)
    for name, length in puts:
        store.put(name, entry(length))
        assert store.size <= store.budget
        assert store.size == sum(kept.size for kept in store._entries.values())


def test_only_a_true_prefix_is_usable_and_never_the_last_token() -> None:
    kept = entry(10)
    assert kept.usable(tuple(range(20)), 0) == 10
    assert kept.usable(tuple(range(10)), 0) == 9
    assert kept.usable((0, 1, 2, 99, 4), 0) == 3
    assert kept.usable((99, 1), 0) == 0
    assert entry(10, start=4).usable(tuple(range(20)), 0) == 0, "its first tokens lie in an opening that is not shared"
    assert entry(10, start=4).usable(tuple(range(20)), 4) == 10
    assert kept.usable((0, 1, 2, 99), 4) == 0, "the opening knows more"


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)), st.integers(-1, 20))
def test_common_prefix(left: list[int], right: list[int], limit: int) -> None:
    length = common_prefix(tuple(left), tuple(right), limit=limit)
    assert left[:length] == right[:length]
    assert 0 <= length <= max(0, limit)
    if length < min(limit, len(left), len(right)):
        assert left[length] != right[length]
