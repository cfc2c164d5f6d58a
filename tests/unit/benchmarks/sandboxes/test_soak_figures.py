from __future__ import annotations

import pytest

from benchmarks.sandboxes.soak import EndlessSource, Sample, flat, memory
from finqa_cli.types import Task


def samples(*memory_mib: float) -> list[Sample]:
    return [
        Sample(at_s=60.0 * number, memory_mib=value, files=1, threads=1, tasks=1, lag_s=0.0)
        for number, value in enumerate(memory_mib)
    ]


def test_a_long_run_is_judged_by_its_growth_an_hour() -> None:
    steady = memory(samples(200.0, 200.01, 200.0, 200.01), seconds=1800)
    growing = memory(samples(200.0, 200.1, 200.2, 200.3), seconds=1800)
    assert steady.passed and not growing.passed
    assert growing.value == pytest.approx(0.1 * 60 / 200)


def test_a_short_run_is_judged_by_what_it_grew() -> None:
    assert memory(samples(200.0, 201.0), seconds=5).passed
    assert not memory(samples(200.0, 250.0), seconds=5).passed


def test_what_comes_and_goes_is_flat_and_what_stays_is_not() -> None:
    assert flat("open files", [500, 503, 498, 501, 500, 502], slack=8).passed
    assert not flat("open files", [500, 510, 520, 530, 540, 550], slack=8).passed
    assert not flat("threads", [5, 6, 8, 11, 12, 14], slack=2).passed


def test_tasks_come_in_turn_and_each_attempt_has_its_own_id_and_seed() -> None:
    tasks = [Task(id=f"q{number}", prompt="?", split="train", cluster="c") for number in range(3)]
    source = EndlessSource(tasks, seed=1, seconds=60)
    attempts = [source.next() for _ in range(7)]
    assert [attempt.task.id for attempt in attempts if attempt] == ["q0", "q1", "q2", "q0", "q1", "q2", "q0"]
    assert len({attempt.id for attempt in attempts if attempt}) == 7
    assert len({attempt.seed for attempt in attempts if attempt}) == 7
    assert EndlessSource(tasks, seed=1, seconds=0).next() is None
