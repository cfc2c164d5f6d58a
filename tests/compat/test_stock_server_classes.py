"""Our client against OpenEnv's own server classes, as published, around a re-creation of its FinQA environment."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from compat.stock_versions import StockOpenEnv
from fixtures.small_snapshot import build_small_snapshot, settings_for

from finqa_cli.data.dataset import DataSet
from finqa_cli.data.openenv_layout.layout import write_layout
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.stream import play_all
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.types import PolicyVersion, Status
from finqa_cli.wiring.stage import stage

APP = Path(__file__).parents[1] / "fixtures/stock_finqa_app.py"


@pytest.fixture(scope="module")
def served(stock: StockOpenEnv, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, DataSet, str]]:
    """Home folder with the snapshot, its data, and the address of the server, which has one session."""
    home = tmp_path_factory.mktemp("stock-classes")
    dataset = build_small_snapshot(home)[1]
    write_layout(dataset, home / "data")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (home / "stock.log").open("wb") as log:
        process = subprocess.Popen([stock.python, APP, str(port), home / "data"], stdout=log, stderr=log)
    try:
        _wait(f"http://127.0.0.1:{port}/health", process)
        yield home, dataset, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the stock server exited"
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError("the stock server did not start")


async def test_whole_episodes_of_every_task(served: tuple[Path, DataSet, str]) -> None:
    home, dataset, url = served
    chosen = settings_for(home, url=url)
    async with stage(chosen, PolicyVersion(number=0, model=""), run_id="stock", reporter=NullReporter()) as parts:
        tasks = [task for split in parts.environment.splits() for task in parts.environment.tasks(split)]
        attempts = [Attempt(id=f"t/{task.id}/0", task=task, member=0, seed=1) for task in tasks]
        player = parts.player(chosen, temperature=0.0)
        played = await play_all(player, attempts, concurrency=1, on_trajectory=lambda _: None)
    assert len(played) == len(dataset.questions)
    assert [(each.status, each.reward) for each in played] == [(Status.COMPLETED, 1.0)] * len(played)
