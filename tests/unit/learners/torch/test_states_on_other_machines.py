"""A saved state is read where it is: processes on other machines get its files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.reserved_ports import reserved_port

HANG_GUARD_S = 120
SIZES = {"weights": 5_000_000, "about": 10, "empty": 0}

CODE = """
import json, os, sys
from pathlib import Path
from finqa_plugins.learners.torch.distributed import distributed_learner, process_group
process_group.PIECE_BYTES = 2_000_000
processes = distributed_learner.join()
with processes.received(Path("state")) as folder:
    found = {path.name: [path.stat().st_size, path.read_bytes()[:1].hex()] for path in folder.iterdir()}
    print(json.dumps([str(folder.resolve()), found]), flush=True)
processes.gather(None)
print(folder.exists())
"""


def run_ranks(machines: list[list[int]], folder: Path) -> list[list[str]]:
    """Runs the code in a process for each rank, in a folder for each machine; the lines of each."""
    started = []
    with reserved_port() as port:
        for number, ranks in enumerate(machines):
            here = folder / str(number)
            (here / "tmp").mkdir(parents=True, exist_ok=True)
            for local, rank in enumerate(ranks):
                numbers = {"RANK": rank, "WORLD_SIZE": 3, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": len(ranks)}
                own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
                environment = {name: str(value) for name, value in {**numbers, **own}.items()}
                process = subprocess.Popen(
                    [sys.executable, "-c", CODE],
                    cwd=here,
                    env={**os.environ, **environment, "TMPDIR": str(here / "tmp")},
                    stdout=subprocess.PIPE,
                    text=True,
                )
                started.append(process)
        try:
            return [process.communicate(timeout=HANG_GUARD_S)[0].splitlines() for process in started]
        finally:
            for process in started:
                process.kill()


@pytest.mark.parametrize("machines", [[[0], [1, 2]], pytest.param([[0, 1], [2]], marks=pytest.mark.slow)])
def test_each_machine_gets_one_copy_of_the_files(machines: list[list[int]], tmp_path: Path) -> None:
    leader = tmp_path / "0" / "state"
    leader.mkdir(parents=True)
    for name, size in SIZES.items():
        (leader / name).write_bytes(b"\x07" * size)
    outputs = run_ranks(machines, tmp_path)
    folders = []
    for line, there in outputs:
        folder, found = json.loads(line)
        assert found == {name: [size, "07" if size else ""] for name, size in SIZES.items()}
        assert there == str(folder == str(leader))
        folders.append(Path(folder).relative_to(tmp_path).parts[0])
    assert folders == [str(number) for number, ranks in enumerate(machines) for _ in ranks]
    assert len({json.loads(line)[0] for line, _ in outputs}) == 2
