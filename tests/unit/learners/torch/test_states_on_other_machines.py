"""A saved state is read where it is: processes on other machines get its files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fixtures.reserved_ports import reserved_port
from fixtures.warm_python import WarmProcess

HANG_GUARD_S = 120
SIZES = {"weights": 5_000_000, "about": 10, "empty": 0}


def run_ranks(machines: list[list[int]], folder: Path) -> list[list[str]]:
    """Runs `fixtures.received_state` in a process for each rank, in a folder for each machine; the lines of each."""
    started = []
    with reserved_port() as port:
        for number, ranks in enumerate(machines):
            here = folder / str(number)
            (here / "tmp").mkdir(parents=True, exist_ok=True)
            for local, rank in enumerate(ranks):
                numbers = {"RANK": rank, "WORLD_SIZE": 3, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": len(ranks)}
                own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
                environment = {name: str(value) for name, value in {**numbers, **own}.items()}
                variables = {**os.environ, **environment, "TMPDIR": str(here / "tmp")}
                started.append(WarmProcess("fixtures.received_state", environment=variables, cwd=here))
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
