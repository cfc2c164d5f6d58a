"""What the processes of a sandbox may use together, where the kernel's control groups can be written.

Limits of a process (setrlimit) are per process: a sandbox of 16 could use 16 times as much memory. Files: cgroup-v2.rst
and cgroup-v1/memory.rst of the kernel's documentation.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.processes import start_time
from finqa_cli.types import ExecutionLimits

MOUNT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
PREFIX = "finqa-box"
NAME = re.compile(rf"{PREFIX}-(?P<pid>\d+)-(?P<started>\w+)-\w+")
OVERHEAD_BYTES, OVERHEAD_PROCESSES = 32 * 2**20, 4
"""Memory and processes of bubblewrap itself and of the kernel for a sandbox."""

MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")
SWAP_FILES = ("memory.swap.max", "memory.memsw.limit_in_bytes")
PROCESSES_FILE = "pids.max"
PEAK_SLACK_BYTES = 4 * 2**20
"""Bytes by which the peak of a group that reached its limit may be below it: a huge page that did not fit, or memory
that processors reserve in advance."""


@dataclass(frozen=True, slots=True)
class Group:
    """The group of one execution: one folder, or with version 1 one each for memory and for processes."""

    folders: tuple[Path, ...]

    @property
    def entrances(self) -> tuple[str, ...]:
        """Files to which a process writes 0 to enter."""
        return tuple(str(folder / _entrance(folder)) for folder in self.folders)

    def starved(self) -> bool:
        """Whether the kernel, out of memory, killed a process here although the group was never at its own limit.

        Then the limit was that of a container around us, or the machine's, which others may have used up.
        """
        return any(map(_starved, self.folders))


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """Where groups can be made; each has the limits of one execution, and is empty before and after it.

    Attributes:
        parents: One folder, or with version 1 one each for memory and for processes.
    """

    parents: tuple[Path, ...]

    @contextlib.contextmanager
    def group(self, limits: ExecutionLimits) -> Iterator[Group]:
        """Makes a group, which is gone afterwards.

        Raises:
            OSError: It cannot be made after all.
        """
        name = _new_name()
        folders = tuple(parent / name for parent in self.parents)
        try:
            for folder in folders:
                folder.mkdir()
                _limit(folder, limits)
            yield Group(folders)
        finally:
            for folder in folders:
                with contextlib.suppress(OSError):
                    folder.rmdir()


def find_control_groups() -> ControlGroups | None:
    """Groups that limit memory, and processes where they can; None where no group that limits memory can be made."""
    files = {parent: _limits_of_a_group(parent) for parent in _places()}
    if not any(set(MEMORY_FILES) & names for names in files.values()):
        return None
    parents = tuple(parent for parent, names in files.items() if names)
    _remove_stale(parents)
    return ControlGroups(parents)


def _remove_stale(parents: Sequence[Path]) -> None:
    """Groups of owners that were killed, with what is in them.

    bubblewrap, killed in the milliseconds in which it makes a sandbox, leaves a process that waits for it forever.
    """
    for parent in parents:
        for folder in parent.glob(f"{PREFIX}-*"):
            found = NAME.fullmatch(folder.name)
            if found is not None and str(start_time(int(found["pid"]))) != found["started"]:
                with contextlib.suppress(OSError):
                    for pid in (folder / "cgroup.procs").read_text(encoding="ascii").split():
                        os.kill(int(pid), signal.SIGKILL)
                    folder.rmdir()


def _entrance(folder: Path) -> str:
    """The file to write to. Through that of version 1 for threads a process of one thread enters some 10 ms sooner, for
    the kernel waits for no other processor then.
    """
    return "tasks" if (folder / "tasks").exists() else "cgroup.procs"


def _starved(folder: Path) -> bool:
    events = _events(folder / "memory.events") or _events(folder / "memory.oom_control")
    if not events.get("oom_kill"):
        return False
    if "oom" in events:  # version 2
        return not (events["oom"] or events.get("max"))
    # The newest kernels no longer count in memory.failcnt how often a limit was met.
    peak, limit = (
        int((folder / name).read_text(encoding="ascii")) for name in ("memory.max_usage_in_bytes", MEMORY_FILES[1])
    )
    return peak + PEAK_SLACK_BYTES < limit


def _events(file: Path) -> dict[str, int]:
    """Counts by name; empty where this file does not exist."""
    if not file.exists():
        return {}
    return {name: int(count) for name, count in map(str.split, file.read_text(encoding="ascii").splitlines())}


def _limit(folder: Path, limits: ExecutionLimits) -> None:
    memory = str(limits.memory_bytes + limits.disk_bytes + OVERHEAD_BYTES)  # files of a sandbox are memory as well
    for name in MEMORY_FILES:
        if (folder / name).exists():
            (folder / name).write_text(memory, encoding="ascii")
    for name in SWAP_FILES:
        with contextlib.suppress(OSError):  # a kernel without accounting of swap
            if (folder / name).exists():
                (folder / name).write_text("0" if name == SWAP_FILES[0] else memory, encoding="ascii")
    if (folder / PROCESSES_FILE).exists():
        (folder / PROCESSES_FILE).write_text(str(limits.processes + OVERHEAD_PROCESSES), encoding="ascii")


def _places() -> Iterator[Path]:
    """Folders in which to try. With version 2 a group with processes has no children with limits, so beside it."""
    try:
        lines = OWN.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    own = {controllers: path.lstrip("/") for _, controllers, path in (line.split(":", 2) for line in lines)}
    if (MOUNT / "cgroup.controllers").exists():
        yield (MOUNT / own.get("", "")).parent if own.get("", "") else MOUNT
        return
    for controllers, path in own.items():
        for controller in ("memory", "pids"):
            if controller in controllers.split(","):
                yield MOUNT / controllers / path


def _limits_of_a_group(parent: Path) -> set[str]:
    """Which limits a group has that is made there; none where none can be made."""
    folder = parent / _new_name()
    try:
        folder.mkdir()
    except OSError:
        return set()
    try:
        return {name for name in (*MEMORY_FILES, PROCESSES_FILE) if (folder / name).exists()}
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _new_name() -> str:
    return f"{PREFIX}-{os.getpid()}-{start_time(os.getpid())}-{secrets.token_hex(4)}"
