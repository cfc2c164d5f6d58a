"""Facts about processes: machine and start time, which distinguish processes with the same pid, and threads.

`ask_program` starts a program that answers by its output.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from finqa_cli.masking import without_secrets


def start_time(pid: int) -> int | None:
    """Return the clock ticks between boot and the start of a running process, see proc(5); None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name in parentheses may contain spaces
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def count_threads(user: int) -> int:
    """Return the number of threads of a user id; the kernel counts them as processes for RLIMIT_NPROC."""
    threads = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == user:
                threads += sum(1 for _ in (folder / "task").iterdir())
    return threads


def host_name() -> str:
    """Return the name of this machine, with a suffix that differs between machines and between pid namespaces."""
    name = socket.gethostname()
    try:
        machine = Path("/etc/machine-id").read_text(encoding="utf-8").strip()
    except OSError:
        machine = ""
    try:
        pids = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        pids = ""
    return f"{name[:56]}-{hashlib.sha256(f'{machine} {pids}'.encode()).hexdigest()[:6]}"


def ask_program(command: Sequence[str], *, timeout_s: float, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without environment variables that may be secrets; return its status and output.

    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It took longer than `timeout_s`.
        subprocess.CalledProcessError: Its status is not 0, and `check` is set.
    """
    plain = without_secrets(os.environ)
    return subprocess.run(command, env=plain, capture_output=True, text=True, timeout=timeout_s, check=check)
