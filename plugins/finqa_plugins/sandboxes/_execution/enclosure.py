"""A user and limits for one command in a remote sandbox, and the removal of its processes and files.

Sent there as text: standard library only, Python 3.9 or newer, Linux.
"""

# ruff: noqa: PTH101, PTH104, PTH106, PTH108, PTH110, PTH116, PTH118, PTH120, PTH123, PTH208
# Importing pathlib would take longer than the rest of the start-up.

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import resource
import signal
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

CLEAN_S = 10.0
"""Seconds for ending processes, and again for removing files. Both fit into `calls.OVERHEAD_S`: otherwise a reply that
is late because the code left much to clean would count as a fault of the sandbox."""
OPEN_FILES = 256
MOST_FILES = 20_000
"""Files after which a folder counts as full: counting them must not take longer than the code itself."""
SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")
FIRST_UID, UIDS, LAST_RESORT_UID = 20_000, 20_000, 65_534
PATH = "/usr/local/bin:/usr/bin:/bin"
ENVIRONMENT = {"PATH": PATH, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
"""A fixed hash seed gives sets of texts the same order in every execution, so that code is deterministic."""
_PDEATHSIG, _DUMPABLE, _SECCOMP, _CHILD_SUBREAPER, _NO_NEW_PRIVS = 1, 4, 22, 36, 38

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The sandbox cannot execute anything."""


def guard_itself() -> None:
    """Protect our memory and descriptors, and become the subreaper of processes that the command leaves."""
    _libc.prctl(_DUMPABLE, 0, 0, 0, 0)
    _libc.prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)


def processes() -> Iterator[tuple[int, int, int]]:
    """Yield process id, parent and user of every process."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            yield int(name), parent, os.stat(f"/proc/{name}").st_uid


def own_uid() -> int:
    """Return a user id that no process of the sandbox has; our own if we are not root."""
    if os.geteuid() != 0:
        return os.geteuid()
    taken = {uid for _, _, uid in processes()}
    drawn = [FIRST_UID + int.from_bytes(os.urandom(4), "big") % UIDS for _ in range(20)]
    for uid in (*drawn, LAST_RESORT_UID):
        if uid not in taken and as_user(uid, lambda: None):
            return uid
    raise Refused("it cannot run as another user, and code is never executed as root")


def guard_of(uid: int) -> int:
    """Return the real user id of our processes that act as the command's user, so that the command cannot stop them.

    It differs for each user: ending all processes of one must not end those of another supervisor.
    """
    return uid - 1 if uid == LAST_RESORT_UID else uid + UIDS


def threads_of(uid: int) -> int:
    """Count the threads of all processes of a user."""
    found = 0
    for pid in [pid for pid, _, owner in processes() if owner == uid]:
        with contextlib.suppress(OSError):
            found += len(os.listdir(f"/proc/{pid}/task"))
    return found


def as_user(uid: int, action: Callable[[], object]) -> bool:
    """Return whether an action of a short-lived child with this user id succeeds."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(guard_of(uid), uid, guard_of(uid))
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def python_for(uid: int) -> str:
    """Return a Python that this user can run: our interpreter, else the system's."""

    def readable() -> None:
        os.close(os.open(sys.executable, os.O_RDONLY))
        os.listdir(os.path.dirname(os.path.realpath(os.__file__)))

    if uid == os.geteuid() or as_user(uid, readable):
        return sys.executable
    others = [f"{folder}/python3" for folder in PATH.split(":")]
    return next((path for path in others if os.path.exists(path)), sys.executable)


def confine(limits: dict[str, Any], threads: int, denied: bytes) -> None:
    """Confine the child, which already has its user id, before its command. `threads`: other threads of its user."""
    if os.geteuid() == 0:
        raise Refused("code is never executed as root")
    cpu, most = max(1, math.ceil(limits["cpu_s"])), threads + limits["processes"]
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_AS, limits["memory_bytes"], limits["memory_bytes"]),
        (resource.RLIMIT_NPROC, most, most),
        (resource.RLIMIT_FSIZE, limits["disk_bytes"], limits["disk_bytes"]),
        (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        cap = resource.getrlimit(kind)[1]
        bounded = (soft, hard) if cap == resource.RLIM_INFINITY else (min(soft, cap), min(hard, cap))
        resource.setrlimit(kind, bounded)
    _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    if denied:
        held = ctypes.create_string_buffer(denied, len(denied))
        program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(denied) // 8, ctypes.addressof(held)))
        _libc.prctl(_SECCOMP, 2, program, 0, 0)  # on a kernel without it the other limits remain


def used(folder: str, uid: int) -> int:
    """Return the bytes of the command's files, in its folder and in those that every user may write to."""
    size = seen = 0
    waiting = [folder]
    if uid != os.geteuid():
        waiting += [path for path in left_in_shared_folders(uid) if path != folder]
    while waiting:
        here = waiting.pop()
        try:
            state = os.lstat(here)
            held, seen = state.st_blocks * 512, seen + 1
            if stat.S_ISDIR(state.st_mode):
                waiting += [os.path.join(here, name) for name in os.listdir(here)]
                size += held if here != folder else 0
            else:
                size += min(held, state.st_size)  # a file of exactly the limit does not exceed it
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # code that nests folders so deeply could hide files there
                return sys.maxsize
        if seen > MOST_FILES:
            return sys.maxsize
    return size


def holds_more_without_names(uid: int, most: int) -> bool:
    """Whether the command's processes keep more than `most` bytes in open files without a name."""
    supervisor = os.getpid()

    def look() -> None:
        sizes: dict[tuple[int, int], int] = {}
        for pid in descendants(supervisor, [(pid, parent) for pid, parent, _ in processes()]):
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/fd"):
                    state = os.stat(f"/proc/{pid}/fd/{name}")
                    if stat.S_ISREG(state.st_mode) and state.st_nlink == 0:
                        sizes[state.st_dev, state.st_ino] = min(state.st_blocks * 512, state.st_size)
        if sum(sizes.values()) > most:
            raise Refused

    if uid != os.geteuid():
        return not as_user(uid, look)
    try:
        look()
    except Refused:
        return True
    return False


def descendants(pid: int, found: list[tuple[int, int]]) -> set[int]:
    """Return a process and all its descendants, among pairs of process and parent."""
    family, grew = {pid}, True
    while grew:
        born = {child for child, parent in found if parent in family} - family
        family, grew = family | born, bool(born)
    return family


def left_in_shared_folders(uid: int) -> Iterator[str]:
    """Yield the paths of a user's files in folders that every user may write to."""
    for shared in SHARED_FOLDERS:
        with contextlib.suppress(OSError), os.scandir(shared) as entries:
            for entry in list(entries):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == uid:
                        yield entry.path


def remove(path: str, deadline: float) -> None:
    """Remove a file, or a tree of any depth by moving the contents of its folders up first. Never raises."""
    number = 0
    while time.monotonic() < deadline:
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
                return
            os.chmod(path, 0o700)
            names = os.listdir(path)
            if not names:
                os.rmdir(path)
                return
        except OSError:
            return
        for name in names:
            if time.monotonic() > deadline:
                return
            inner = os.path.join(path, name)
            with contextlib.suppress(OSError):
                if not stat.S_ISDIR(os.lstat(inner).st_mode):
                    os.unlink(inner)
                    continue
                os.chmod(inner, 0o700)
                for deeper in os.listdir(inner):
                    number += 1
                    os.rename(os.path.join(inner, deeper), os.path.join(path, f".finqa-{os.getpid()}-{number}"))
                os.rmdir(inner)


def kill_all(uid: int, heir: int, deadline: float) -> None:
    """Kill all our descendants except the heir, and all processes of the command's user if it has its own.

    Returns when they are gone, or at the deadline.
    """
    while time.monotonic() < deadline:
        if uid != os.geteuid():
            as_user(uid, lambda: os.kill(-1, signal.SIGKILL))  # all at once, so that none can escape by forking
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        found = [(pid, parent) for pid, parent, _ in processes() if pid != heir]
        ours = descendants(os.getpid(), found)
        if len(ours) == 1:
            return
        for pid in ours - {os.getpid()}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def tidy(uid: int, folder: str, deadline: float) -> None:
    """Remove the files of a command whose processes are gone."""
    remove(folder, deadline)
    if uid != os.geteuid():
        for path in left_in_shared_folders(uid):
            remove(path, deadline)


class Heir:
    """A process that ends the command and cleans up if this process is killed. It costs one fork."""

    def __init__(self, uid: int, folder: str) -> None:
        waits, self._wakes = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(waits)
            return
        try:
            os.setsid()  # otherwise code that kills our process group would kill this process too
            for descriptor in (0, 1, 2, self._wakes):  # readers of our output must not wait for this process
                os.close(descriptor)
            if not os.read(waits, 1):
                deadline = time.monotonic() + CLEAN_S
                kill_all(uid, 0, deadline)
                tidy(uid, folder, deadline)
        finally:
            os._exit(0)

    def dismiss(self) -> None:
        """End the heir, because everything is already cleaned up."""
        os.write(self._wakes, b"1")
        os.waitpid(self.pid, 0)
