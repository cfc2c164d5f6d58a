"""Which process a pid means: pids are reused, start times tell them apart."""

from __future__ import annotations

from pathlib import Path


def start_time(pid: int) -> int | None:
    """Clock ticks between boot and the start of a running process, see proc(5); None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name in parentheses may hold spaces
    return None if not fields or fields[0] in "ZX" else int(fields[19])
