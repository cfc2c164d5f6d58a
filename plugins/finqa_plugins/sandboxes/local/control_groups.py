"""Limits on what all processes of a sandbox use together, if the kernel's control groups can be written.

Limits by setrlimit are per process: 16 processes of a sandbox could use 16 times as much memory. For the files see
cgroup-v2.rst and cgroup-v1/memory.rst of the kernel's documentation.
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
"""Memory and processes that bubblewrap and the kernel need for a sandbox."""

MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")
SWAP_FILES = ("memory.swap.max", "memory.memsw.limit_in_bytes")
PROCESSES_FILE = "pids.max"
PEAK_SLACK_BYTES = 4 * 2**20
"""Bytes by which the recorded peak of a group that reached its limit may be below the limit: a huge page that did not
fit, or memory that processors reserve in advance."""


@dataclass(frozen=True, slots=True)
class Group:
    """The group of one execution: one folder; with version 1, one for memory and one for processes."""

    folders: tuple[Path, ...]

    @property
    def entrances(self) -> tuple[str, ...]:
        """Files to which a process writes 0 to enter."""
        return tuple(str(folder / _entrance(folder)) for folder in self.folders)

    def starved(self) -> bool:
        """Whether the kernel killed a process of the group for lack of memory, but never at the group's own limit.

        Then a container around this process, or the machine, had no memory left; other processes may have used it.
        """
        return any(map(_starved, self.folders))


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """Creates groups; each has the limits of one execution, and is empty before and after it.

    Attributes:
        parents: Folders for new groups: one; with version 1, one for memory and one for processes.
    """

    parents: tuple[Path, ...]

    @contextlib.contextmanager
    def group(self, limits: ExecutionLimits) -> Iterator[Group]:
        """Creates a group for the block, and removes it afterwards.

        Raises:
            OSError: The group cannot be created after all.
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
    """Groups that limit memory, and if possible processes; None if no group that limits memory can be created."""
    files = {parent: _limits_of_a_group(parent) for parent in _places()}
    if not any(set(MEMORY_FILES) & names for names in files.values()):
        return None
    parents = tuple(parent for parent, names in files.items() if names)
    _remove_stale(parents)
    return ControlGroups(parents)


def _remove_stale(parents: Sequence[Path]) -> None:
    """Remove groups whose owner was killed, and end the processes in them.

    If bubblewrap is killed in the milliseconds in which it makes a sandbox, it leaves a process that waits forever.
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
    """The file through which a process enters the group.

    `tasks` of version 1 moves one thread, all that the process has. This is about 10 ms faster, because the kernel
    waits for no other processor.
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
    """Counts by name; empty if the file does not exist."""
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
    """Yield folders for new groups. In version 2 groups with processes cannot limit children: use their parent."""
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
    """Names of the limits that a new group in this folder has; empty if none can be created."""
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
