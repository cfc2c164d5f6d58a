from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scale.engine_latency import LatencyModel, SharedDecoder

MODEL = LatencyModel(step_s=0.5, step_s_per_request=0.25)
ARRIVALS = st.lists(st.tuples(st.floats(0, 50), st.integers(1, 60)), min_size=1, max_size=12)


def finish_times(arrivals: list[tuple[float, int]], looks: list[float]) -> dict[int, float]:
    """Exact ends, found by asking `due`; `looks` are further moments at which it is asked."""
    decoder: SharedDecoder[int] = SharedDecoder(MODEL, 0.0)
    events = sorted([(when, number, steps) for number, (when, steps) in enumerate(arrivals)])
    moments = sorted([*(event[0] for event in events), *looks])
    ends: dict[int, float] = {}
    for moment in [*moments, float("inf")]:
        while (due := decoder.due()) is not None and due <= moment:
            ends |= dict.fromkeys(decoder.advance(due), due)
        if moment < float("inf"):
            decoder.advance(moment)
        while events and events[0][0] <= moment:
            when, number, steps = events.pop(0)
            assert decoder.add(number, steps, when) == []
    return ends


def stepped(arrivals: list[tuple[float, int]], tick: float = 0.002) -> dict[int, float]:
    """The same by brute force: small ticks, each request served its share."""
    left: dict[int, float] = {}
    waiting = sorted((when, number, steps) for number, (when, steps) in enumerate(arrivals))
    ends: dict[int, float] = {}
    now = 0.0
    while waiting or left:
        while waiting and waiting[0][0] <= now:
            _, number, steps = waiting.pop(0)
            left[number] = steps
        served = tick / (MODEL.step_s + MODEL.step_s_per_request * (len(left) - 1)) if left else 0.0
        now += tick
        left = {number: steps - served for number, steps in left.items()}
        ends |= {number: now for number, steps in left.items() if steps <= 0}
        left = {number: steps for number, steps in left.items() if steps > 0}
    return ends


def test_a_request_alone_takes_its_steps() -> None:
    assert finish_times([(2.0, 4)], []) == {0: 4.0}


def test_two_share() -> None:
    assert finish_times([(0.0, 4), (0.0, 8)], []) == pytest.approx({0: 3.0, 1: 5.0})


@given(ARRIVALS)
def test_equals_serving_in_small_ticks(arrivals: list[tuple[float, int]]) -> None:
    shorter = [(when, min(steps, 8)) for when, steps in arrivals[:4]]
    shorter = [(when / 10, steps) for when, steps in shorter]
    assert finish_times(shorter, []) == pytest.approx(stepped(shorter), abs=0.05)


@given(ARRIVALS, st.lists(st.floats(0, 400), max_size=10))
def test_who_looks_when_changes_nothing(arrivals: list[tuple[float, int]], looks: list[float]) -> None:
    assert finish_times(arrivals, looks) == pytest.approx(finish_times(arrivals, []))


def test_a_late_look_finds_the_same_ends_in_order() -> None:
    decoder: SharedDecoder[str] = SharedDecoder(MODEL, 0.0)
    decoder.add("long", 8, 0.0)
    decoder.add("short", 4, 0.0)
    assert decoder.advance(100.0) == ["short", "long"]
    assert decoder.request_seconds == pytest.approx(2 * 3.0 + 2.0)


def test_a_cancelled_request_gives_its_place_back() -> None:
    decoder: SharedDecoder[str] = SharedDecoder(MODEL, 0.0)
    decoder.add("stays", 4, 0.0)
    decoder.add("goes", 4, 0.0)
    assert decoder.cancel("goes", 0.75) == []
    assert decoder.due() == pytest.approx(0.75 + 3 * 0.5)
    assert decoder.advance(9.0) == ["stays"] and decoder.due() is None


def test_lengths_are_seeded_and_as_described() -> None:
    model = LatencyModel()
    lengths = [model.steps(seed, turn) - model.prefill_steps for seed in range(1000) for turn in range(3)]
    assert lengths == [model.steps(seed, turn) - model.prefill_steps for seed in range(1000) for turn in range(3)]
    assert statistics.median(lengths) == pytest.approx(70, rel=0.08)
    assert max(lengths) <= 512 and min(lengths) >= 1 and len(set(lengths)) > 100
