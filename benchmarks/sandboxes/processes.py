"""Who descends from a process, and whether they are still there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

Identity = tuple[int, int]
"""A process id and when it started, in ticks since boot: ids are used again."""


def open_files() -> int:
    """Descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def family(pid: int) -> set[Identity]:
    """A process and all its living descendants."""
    children: dict[int, list[Identity]] = defaultdict(list)
    found: set[Identity] = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (facts := _facts(int(folder.name))) is not None:
            parent, started = facts
            children[parent].append((int(folder.name), started))
            if int(folder.name) == pid:
                found.add((pid, started))
    waiting = [pid]
    while waiting:
        for child in children[waiting.pop()]:
            found.add(child)
            waiting.append(child[0])
    return found


async def survivors(members: Collection[Identity], patience_s: float) -> set[Identity]:
    """Those that are still there after so long; returns at once when there is none."""
    end = time.monotonic() + patience_s
    while left := {member for member in members if _lives(member)}:
        if time.monotonic() >= end:
            return left
        await asyncio.sleep(0.05)
    return set()


def _lives(member: Identity) -> bool:
    facts = _facts(member[0])
    return facts is not None and facts[1] == member[1]


def _facts(pid: int) -> tuple[int, int] | None:
    """Parent and start; None for a process that is gone or dead and not yet waited for."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        if fields[0] not in "ZX":
            return int(fields[1]), int(fields[19])
    return None
