"""Runs a server that dies with its parent.

`python -m finqa_plugins.sandboxes.local.reaper MODULE` runs a Python module in this process, and
`... reaper -- COMMAND ARGUMENT...` replaces this process by a command.

On Linux the kernel sends SIGKILL when the starting thread ends (PR_SET_PDEATHSIG), even if the parent was killed with
SIGKILL; this also holds for a command. For a module, a thread also watches the parent, for other systems and for a
parent that had ended before.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import runpy
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
WATCH_INTERVAL_S = 0.5


def main() -> None:
    """Make sure that this process ends with its parent, then become the module or the command."""
    parent = int(os.environ["FINQA_PARENT_PID"])
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # SLURM may send it to all processes; the parent ends this one
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _raise_file_limit()
    if sys.argv[1] == "--":
        if os.getppid() != parent:
            sys.exit("the process that started this server is gone")
        _become(sys.argv[2:])
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="parent watch").start()
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _become(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error.strerror}")


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_INTERVAL_S)
    os._exit(1)


def _raise_file_limit() -> None:
    """Raise the limit of open files: each session is a socket, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    main()
