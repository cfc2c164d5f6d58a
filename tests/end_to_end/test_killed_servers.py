"""Training whose server processes are killed again and again: the same figures, from the same episodes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

KILLS = 5
TRAIN = (
    *("train", "--model=embedded", "--sandboxes=8", "--iterations=3", "--group-size=4", "--limit=8", "--quiet"),
    *("--set=train.target_groups_per_iter=2", "--no-preflight"),
)
pytestmark = pytest.mark.slow  # test_pool_local_servers.py kills servers of a pool, at their start as well


def train(folder: Path, seed: int | None) -> tuple[int, str, list[dict[str, Any]]]:
    """Train, killing a server each second from the first moment on (no kills without a seed)."""
    run, ledger = folder / "run", folder / "home" / "local"
    environment = {**os.environ, "FINQA_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "finqa_cli", *TRAIN, "--run-dir", str(run)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    rng, killed = random.Random(seed), 0
    while process.poll() is None:
        servers = sorted(ledger.glob("*.json"))
        if seed is None or killed == KILLS or not servers:
            time.sleep(0.02)
            continue
        time.sleep(rng.uniform(0, 1) if killed else 0)
        try:
            os.kill(int(rng.choice(servers).stem), signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed += 1
        time.sleep(rng.choice((0.0, 1.0)))
    assert seed is None or killed == KILLS, "the run was over before"
    assert process.stderr is not None
    said = process.stderr.read()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ignored = ("timing", "recoveries")
    return process.returncode, said, [{name: line[name] for name in line if name not in ignored} for line in lines]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    status, said, metrics = train(tmp_path_factory.mktemp("unbroken"), None)
    assert status == 0, said
    return metrics


@pytest.mark.parametrize("seed", range(20))
def test_kills_change_no_figure(seed: int, unbroken: list[dict[str, Any]], tmp_path: Path) -> None:
    status, said, metrics = train(tmp_path, seed)
    assert status == 0, said
    assert metrics == unbroken
