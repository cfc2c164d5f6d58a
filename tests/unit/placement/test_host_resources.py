"""Cores and memory that a process may use, from files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from finqa_cli.placement import host_resources as machine


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four cores without limits; the clock of a look at the load is 1 s."""
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    clock = iter(range(100))
    monkeypatch.setattr(machine.time, "monotonic", lambda: float(next(clock)))
    return tmp_path


def stat(idle: list[int]) -> str:
    rows = [f"cpu{number} 10 0 10 {ticks} 0 0 0 0 0 0" for number, ticks in enumerate(idle)]
    return "\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *rows, "intr 5"])


@pytest.mark.parametrize(
    ("later", "quota", "free"),
    [
        ([100, 100, 100, 100], "max 100000", 4),
        ([100, 98, 2, 0], "max 100000", 2),
        ([0, 0, 0, 0], "max 100000", 1),
        ([100, 100, 100, 100], "250000 100000", 2),
        ([100, 100, 100, 100], "50000 100000", 1),
    ],
)
def test_free_cores_are_those_that_are_idle_within_the_quota(
    system: Path, monkeypatch: pytest.MonkeyPatch, later: list[int], quota: str, free: int
) -> None:
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 100)
    (system / "cpu.max").write_text(quota)
    (system / "stat").write_text(stat([0, 0, 0, 0]))
    monkeypatch.setattr(machine.time, "sleep", lambda seconds: (system / "stat").write_text(stat(later)))
    assert machine.free_cores() == free


def test_without_these_files_the_cores_of_the_affinity_count(system: Path) -> None:
    assert machine.usable_cores() == machine.free_cores() == 4 and machine.available_memory() is None


def test_memory_is_the_smaller_of_machine_and_cgroup(system: Path) -> None:
    (system / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   4096 kB\n")
    assert machine.available_memory() == 4096 * 1024
    (system / "memory.max").write_text("3000000")
    (system / "memory.current").write_text("2000000")
    (system / "memory.stat").write_text("anon 5\ninactive_file 500000\n")
    assert machine.available_memory() == 1_500_000
    (system / "memory.max").write_text("max")
    assert machine.available_memory() == 4096 * 1024


def test_on_this_machine_the_numbers_are_possible() -> None:
    assert 1 <= machine.free_cores() <= machine.usable_cores()
    memory = machine.available_memory()
    assert memory is None or memory > 0
