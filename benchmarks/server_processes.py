"""What the kernel tells about a server process, and waiting for one to answer."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Memory of a process that is in RAM, shared libraries included."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return float(line.split()[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def free_port() -> int:
    """A port of loopback that is unused now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    """Waits for the first connection to be taken, at most a minute.

    Raises:
        RuntimeError: The process has exited, or takes too long.
    """
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"the server exited with status {process.returncode}")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise RuntimeError("the server did not start within a minute")


def reset_peak(pid: int) -> None:
    """Begin to count the peak of a process's memory again."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf-8")


def peak_mib(pid: int) -> float:
    """The most memory that a process had in RAM since `reset_peak`."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return float(line.split()[1]) / 1024
