"""`examples/trl_on_finqa.py`: TRL's GRPOTrainer improves the embedded policy on a server of `finqa snapshot serve`."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from trl_parity.interpreter import PYTHON

from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME, LocalSnapshots
from finqa_plugins.environments.openenv_finqa.finqa_prompt import SYSTEM

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "trl_on_finqa.py"
POLICY = ROOT / "plugins" / "finqa_plugins" / "policies"
TOKEN = "0123456789abcdef"
STEPS = 4
"""The last is played by the policy of three updates."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    LocalSnapshots(tmp_path).build_embedded(DEFAULT_NAME, named=False)
    environment = {**os.environ, "FINQA_HOME": str(tmp_path), "FINQA_TOKEN": TOKEN}
    command = [sys.executable, "-m", "finqa_cli", "snapshot", "serve", DEFAULT_NAME, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"]
        server.terminate()


@pytest.mark.timeout(900)  # a minute on an idle machine
@pytest.mark.skipif(PYTHON is None, reason="TRL is not there: run `make test-trl`")
def test_three_updates_improve_the_policy(tmp_path: Path, url: str) -> None:
    options = {
        "model": POLICY,
        "output": tmp_path / "out",
        "questions": 2,
        "groups": 2,
        "group-size": 16,
        "steps": STEPS,
    }
    options |= {"tool-calls": 5, "completion-tokens": 300, "learning-rate": 5e-3, "url": url}
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    variables = {"PATH", "HOME", "TMPDIR", "HF_HUB_OFFLINE"} & set(os.environ)
    environment = {**{name: os.environ[name] for name in variables}, "FINQA_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    assert PYTHON is not None
    done = subprocess.run([PYTHON, EXAMPLE, *flags], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    history = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    rewards = [entry["reward"] for entry in history if "reward" in entry]
    assert len(rewards) == STEPS and (tmp_path / "out" / "adapter_model.safetensors").is_file()
    assert rewards[-1] > rewards[0] + 0.2, rewards  # 0.19, 0.16, 0.66 and 0.63 with the pinned versions
    assert all(f"step {step}: mean reward {reward:.3f}" in done.stdout for step, reward in enumerate(rewards, 1))


def test_the_example_asks_as_finqa_does() -> None:
    (system,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(EXAMPLE.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SYSTEM"
    )
    assert system == SYSTEM
