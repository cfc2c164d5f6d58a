from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.sandboxes.processes import family, open_files, survivors

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"


async def test_descendants_are_found_and_known_to_be_gone() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=pipe, stdout=pipe) as parent:  # noqa: ASYNC220
        assert parent.stdin is not None and parent.stdout is not None
        parent.stdout.readline()
        members = family(parent.pid)
        assert len(members) == 2 and parent.pid in {pid for pid, _ in members}
        assert await survivors(members, 0.1) == members
        parent.stdin.close()
        parent.wait()
    assert await survivors(members, 2.0) == set()
    assert family(parent.pid) == set()


async def test_another_process_of_the_same_id_is_no_survivor() -> None:
    assert await survivors({(os.getpid(), 1)}, 0.0) == set()


def test_open_files_are_counted() -> None:
    before = open_files()
    with open(os.devnull):  # noqa: PTH123
        assert open_files() == before + 1
