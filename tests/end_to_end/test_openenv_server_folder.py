"""The environment folder for OpenEnv's tools: its server starts on a data folder, and our client plays it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fixtures.reserved_ports import reserved_port
from fixtures.small_snapshot import build_small_snapshot, settings_for

from finqa_cli.data.openenv_layout.layout import write_layout
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.types import PolicyVersion, Status
from finqa_cli.wiring.stage import stage

FOLDER = Path(__file__).parents[2] / "deploy/openenv_finqa"


def wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server exited"
        try:
            if httpx.get(f"{url}/health").json() == {"status": "healthy"}:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the server did not start")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """Address of a server as OpenEnv's tools start it, on a data folder in the layout of OpenEnv's FinQA data."""
    write_layout(build_small_snapshot(tmp_path)[1], tmp_path / "data")
    environment = {**os.environ, "FINQA_DATA_PATH": str(tmp_path / "data"), "FINQA_HOME": str(tmp_path / "home")}
    with reserved_port() as port:
        command = [sys.executable, "-m", "uvicorn", "server.app:app", "--port", str(port), "--log-level", "warning"]
        process = subprocess.Popen(command, cwd=FOLDER, env=environment)
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


async def test_it_compiles_a_data_folder_and_serves_it(served: str, tmp_path: Path) -> None:
    chosen = settings_for(tmp_path, url=served)
    async with stage(chosen, PolicyVersion(number=0, model=""), run_id="folder", reporter=NullReporter()) as parts:
        task = parts.environment.tasks(parts.environment.splits()[0])[0]
        player = parts.player(chosen, temperature=0.0)
        played = await player.play(Attempt(id="t", task=task, member=0, seed=1), player.seat())
    assert (played.status, played.reward, played.retries) == (Status.COMPLETED, 1.0, 0)


@pytest.mark.parametrize(
    ("variables", "status", "message"),
    [
        ({"FINQA_DATA_PATH": "/nowhere"}, 65, "this data folder does not exist"),
        ({"FINQA_SNAPSHOT": "/nowhere"}, 65, "not a readable snapshot"),
        ({"FINQA_SNAPSHOT": "/nowhere", "FINQA_MAX_STEPS": "many"}, 78, "bad environment variable"),
        ({}, 78, "HOST '0.0.0.0' can be reached from other machines, so FINQA_TOKEN must be set"),
    ],
)
def test_what_it_cannot_serve_is_told(tmp_path: Path, variables: dict[str, str], status: int, message: str) -> None:
    environment = {**os.environ, "FINQA_HOME": str(tmp_path), **variables}
    command = [sys.executable, "-m", "server.app"]
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (status, True, False), done.stderr
