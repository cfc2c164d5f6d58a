"""`finqa train` and `finqa eval` with the vllm engine, as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

TIMEOUT_S = 400
EXACT = 1e-4
SMALL = (
    "--model=embedded",
    "--engine=vllm",
    "--sandbox=local",
    "--sandboxes=24",
    "--group-size=8",
    "--target-groups-per-iter=3",
    "--max-rollout-rounds=3",
    "--limit=8",
    "--iterations=2",
    "--seed=3",
)


@pytest.fixture
def train(vllm_python: Path, tmp_path: Path) -> Callable[..., Path]:
    def run(name: str, *arguments: str) -> Path:
        environment = {**os.environ, "FINQA_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1", "CI": "1"}
        folder = tmp_path / name
        option = f"engine.options.python={vllm_python}"
        command = [sys.executable, "-m", "finqa_cli", "train", *SMALL, "--set", option, "--run-dir", str(folder)]
        ended = subprocess.run(
            [*command, *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert ended.returncode == 0, ended.stderr[-4000:]
        assert "Traceback" not in ended.stderr
        return folder

    return run


def records(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize("staleness", [0, 1])
def test_two_iterations_train_on_what_the_server_sampled(train: Callable[..., Path], staleness: int) -> None:
    run = train("run", f"--max-staleness={staleness}")
    iterations = [one for one in records(run, "metrics.jsonl") if one["kind"] == "train"]
    assert [one["iteration"] for one in iterations] == [1, 2]
    updated = [one for one in iterations if one["updates"]]
    assert updated, "no group carried signal"
    for one in updated:
        assert one["faults"] == 0
        assert one["loss_tokens"] > 0
        assert one["probe_largest"] <= EXACT, "the server serves what the learner published"
        assert one["staleness_max"] <= staleness
    assert updated[0]["logprob_difference_max"] <= EXACT, (
        "sampler and learner agree on tokens of the weights they share"
    )
    turns = [turn for one in records(run, "trajectories.jsonl") for turn in one["turns"]]
    assert max(turn["policy_version"] for turn in turns) >= 1
    assert (run / "logs" / "vllm-0.log").is_file()
