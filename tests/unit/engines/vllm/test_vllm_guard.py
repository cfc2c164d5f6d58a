"""Nothing of a server is left once its guard has ended it, its shared memory neither."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from finqa_cli.processes import start_time
from finqa_plugins.engines.vllm import vllm_guard

SERVER = """
import os, signal, subprocess, sys, time
from multiprocessing import resource_tracker, shared_memory

segment = shared_memory.SharedMemory(create=True, size=4096)
if sys.argv[1] == "without tracker":
    os.kill(resource_tracker._resource_tracker._pid, signal.SIGKILL)
if sys.argv[1] == "hung":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(segment.name, os.getpid(), worker.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="lists processes by /proc")
@pytest.mark.parametrize("how", ["in order", "hung", "without tracker"])
def test_shared_memory_goes_with_the_server_that_made_it(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    command = [sys.executable, "-I", vllm_guard.__file__, str(folder), sys.executable, "-c", SERVER, how]
    guard = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert guard.stdin is not None and guard.stdout is not None
    try:
        name, *pids = guard.stdout.readline().split()
        segment = Path("/dev/shm", name)
        assert segment.exists() and all(start_time(int(pid)) is not None for pid in pids)
    finally:
        guard.stdin.close()
        guard.wait(60)
        guard.stdout.close()
    assert not segment.exists() and not folder.exists()
    assert [pid for pid in pids if start_time(int(pid)) is not None] == []
