"""Runs a command and ends all its processes when this process or its parent ends: `vllm_guard.py FOLDER COMMAND...`.

vLLM starts processes of its own that outlive a killed server. This process is their subreaper: it ends when the command
does, when its standard input closes, or when its parent is gone, and then kills every descendant and deletes FOLDER. If
it is killed itself, the command dies too (PR_SET_PDEATHSIG). It runs outside of packages and imports only the standard
library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
WATCH_INTERVAL_S = 0.25
MEMORY_INTERVAL_S = 0.5
"""Seconds between two looks at the shared memory that is mapped: processes that end badly take the names with them."""
GRACE_S = 3.0
"""Seconds for the server to end by itself; it has nothing to save."""
TRACKERS_S = 5.0
"""Seconds for Python's resource trackers to unlink shared memory that other processes left."""
SHARED_MEMORY = ("/dev/shm/psm_", "/dev/shm/sem.mp-")
"""Prefixes of the files with shared memory and semaphores of Python's `multiprocessing`."""


def main() -> int:
    """Runs the command and returns its exit status, as a shell reports it; 137 if the command had to be killed."""
    parent = os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # SLURM may send it to all processes; the server inherits this
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    server = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    left: set[str] = set()
    try:
        looked = 0.0
        while server.poll() is None and os.getppid() == parent and not _input_closed(WATCH_INTERVAL_S):
            if time.monotonic() - looked > MEMORY_INTERVAL_S:
                left.update(_shared_memory())
                looked = time.monotonic()
        left.update(_shared_memory())
        if server.poll() is None:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(GRACE_S)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        status = server.poll()
        _end_descendants(left)
        shutil.rmtree(sys.argv[1], ignore_errors=True)
    print(f"[finqa] the server ended with status {status}", file=sys.stderr, flush=True)
    return 137 if status is None else status if status >= 0 else 128 - status


def _input_closed(wait_s: float) -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


def _die_with_parent() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value)


def _end_descendants(left: set[str]) -> None:
    """Kills all descendants: orphans of a killed process become children of this one, so it repeats until none is left.

    Resource trackers come last: they end by themselves once their processes are gone, and unlink the shared memory that
    these left. A server that ends badly kills some of its trackers itself, so files that were mapped, and those in
    `left`, are unlinked here.
    """
    deadline = time.monotonic() + TRACKERS_S
    left.update(_shared_memory())
    while found := _descendants():
        late = time.monotonic() > deadline
        for pid in (pid for pid in found if late or not _is_tracker(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        _unlink(left)  # in each round: this process may be killed while it waits for trackers
        time.sleep(0.01)
    _unlink(left)


def _unlink(names: set[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            Path(name).unlink()


def _shared_memory() -> Iterator[str]:
    """The files of Python's shared memory that a descendant has mapped."""
    for pid in _descendants():
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                name = line.split(maxsplit=5)[-1]
                if name.startswith(SHARED_MEMORY) and not name.endswith(" (deleted)"):
                    yield name


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _descendants() -> list[int]:
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(stat.parent.name)] = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
    found: list[int] = []
    level = {os.getpid()}
    while level := {pid for pid, parent in parents.items() if parent in level}:
        found += level
    return found


if __name__ == "__main__":
    sys.exit(main())
