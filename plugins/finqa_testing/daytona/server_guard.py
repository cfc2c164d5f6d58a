"""`python -P server_guard.py MODULE ARGUMENTS...` runs MODULE as a program that ends when standard input is closed.

The parent has the other end of that pipe, and the kernel closes it at the parent's end, also after SIGKILL.
The script is started by its path and imports nothing of finqa, so that MODULE and all its imports come from the
image's own packages.
"""

from __future__ import annotations

import contextlib
import os
import resource
import runpy
import sys
import threading

OPEN_FILES = 65_536


def main() -> None:
    """Watches the pipe in a thread and runs MODULE."""
    pipe = os.dup(0)
    os.set_inheritable(pipe, False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_exit_with, args=(pipe,), daemon=True, name="parent watch").start()
    raise_file_limit()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _exit_with(pipe: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(pipe, 1024):
            pass
    os._exit(1)


def raise_file_limit() -> None:
    """Raises the limit of open files, because every session is an open socket and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    main()
