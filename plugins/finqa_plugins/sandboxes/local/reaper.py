"""`python -m finqa_plugins.sandboxes.local.reaper MODULE` runs MODULE as a program that dies with its parent.

On Linux the kernel sends SIGKILL when the starting thread ends (PR_SET_PDEATHSIG), which also covers a parent that was
killed with -9; a watching thread covers other systems and a parent that was gone before this was arranged.
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
    """Arranges the death, then becomes MODULE."""
    parent = int(os.environ["FINQA_PARENT_PID"])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="parent watch").start()
    _raise_file_limit()
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_INTERVAL_S)
    os._exit(1)


def _raise_file_limit() -> None:
    """Every session is an open socket, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    main()
