"""Processor cores and main memory that this process may use, by its affinity and cgroup and by what others take."""

from __future__ import annotations

import os
import time
from pathlib import Path

SMALL_MODEL = 32_000_000
"""Parameters below which a model gains nothing from a second thread or from bfloat16, and a forward pass of any
micro-batch takes a second or two."""

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_STAT = Path("/proc/stat")

_LOOK_S = 0.2
"""Time over which the load of the cores is measured. The load average of a minute would still contain an earlier stage
of the same script."""


def available_memory() -> int | None:
    """Bytes of main memory that this process may still take; None if unknown."""
    limits = [_machine_memory(), _cgroup_memory()]
    return min((limit for limit in limits if limit is not None), default=None)


def usable_cores() -> int:
    """Cores that this process may use: those of its affinity, at most the quota of its cgroup."""
    cores = len(_cores())
    quota = _quota()
    return max(1, min(cores, int(quota)) if quota is not None else cores)


def free_cores() -> int:
    """Cores that this process may use and that others leave idle now, at least 1.

    A thread for each core that others keep busy would slow the whole computation down: the threads of a matrix product
    wait for the last one, and OpenMP waits by spinning.
    """
    idle = _idle_cores()
    cores = usable_cores()
    return cores if idle is None else max(1, min(cores, round(idle)))


def _cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _quota() -> float | None:
    """Cores of the cgroup's quota; None without one."""
    try:
        most, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return int(most) / int(period)
    except (OSError, ValueError):  # no such group, or "max"
        return None


def _idle_cores() -> float | None:
    """Cores of the affinity that are idle, measured while this process sleeps; None if unknown."""
    before = _idle_time()
    began = time.monotonic()
    if before is None:
        return None
    time.sleep(_LOOK_S)
    after, seconds = _idle_time(), time.monotonic() - began
    return None if after is None else (after - before) / seconds


def _idle_time() -> float | None:
    """Seconds that the cores of the affinity have been idle or waited for disks."""
    cores = {f"cpu{number}" for number in _cores()}
    try:
        rows = [line.split() for line in _STAT.read_text(encoding="ascii").splitlines()]
        ticks = [int(row[4]) + int(row[5]) for row in rows if row and row[0] in cores]
        return sum(ticks) / os.sysconf("SC_CLK_TCK") if len(ticks) == len(cores) else None
    except (OSError, ValueError, IndexError):
        return None


def _machine_memory() -> int | None:
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _cgroup_memory() -> int | None:
    try:
        limit, used = (int((_CGROUP / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):  # no such group, or "max"
        return None
    return limit - used + int(cached.get("inactive_file", 0))
