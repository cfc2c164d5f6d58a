"""Engines on a vLLM server that finqa did not start: a trained run is evaluated, problems are tried in dry runs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.isolation import needs_isolation
from vllm_server.conftest import wait_for_health
from vllm_server.running import KEY, KEY_VARIABLE

from finqa_cli.contracts import EngineContext
from finqa_cli.wiring.policies import resolve
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.vllm_command import launch
from finqa_plugins.engines.vllm.vllm_process import ServerProcess, free_port

TIMEOUT_S = 300
SMALL = ("--sandbox=local", "--limit=8", "--seed=3")
ONE_UPDATE = ("--sandboxes=12", "--group-size=4", "--target-groups-per-iter=3", "--max-rollout-rounds=2")


@pytest.fixture(scope="module")
def base_url(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    context = EngineContext(model=resolve("embedded").model, lora_rank=16)
    config = VllmEngineConfig(python=vllm_python)
    launched = launch(config, context, port=free_port(), key=KEY, gpu=False, environ=os.environ)
    process = ServerProcess(launched, tmp_path_factory.mktemp("server") / "server.log")
    try:
        wait_for_health(process, launched.base_url)
        yield launched.base_url
    finally:
        asyncio.run(process.stop())


def test_a_run_is_evaluated_on_a_server_that_runs_already(base_url: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    finqa(tmp_path, "train", "--model=embedded", "--iterations=1", *SMALL, *ONE_UPDATE, f"--run-dir={run}")
    options = (f"engine.options.base_url={base_url}", f"engine.options.api_key_env={KEY_VARIABLE}")
    on_server = ("--engine=openai", *(part for option in options for part in ("--set", option)))
    finqa(tmp_path, "eval", str(run), "--limit=8", f"--run-dir={tmp_path / 'there'}", *on_server)
    finqa(tmp_path, "eval", str(run), "--limit=8", f"--run-dir={tmp_path / 'here'}")
    ours, theirs = episodes(tmp_path / "here"), episodes(tmp_path / "there")
    assert len(theirs) == 8 and all(one["status"] == "completed" for one in theirs)
    assert all(turn["policy_version"] == 1 for one in theirs for turn in one["turns"])
    assert [texts(one) for one in theirs] == [texts(one) for one in ours], "greedy, in float32: the same words"


def test_problems_are_tried_several_times_on_it(base_url: str, tmp_path: Path) -> None:
    needs_isolation()
    on_server = ("--set", f"engine.options.url={base_url}", "--set", f"engine.options.api_key_env={KEY_VARIABLE}")
    problems = ("--environment=mbpp", "--dataset-limit=4", "--max-attempts=2", "--max-gen-tokens=40")
    run = tmp_path / "run"
    dry = ("--dry-run", "--iterations=1", f"--run-dir={run}")
    finqa(tmp_path, "train", "--model=embedded", "--engine=vllm", "--sandbox=local", *problems, *dry, *on_server)
    tried = episodes(run)
    assert len(tried) == 8 and all(one["status"] == "completed" and one["reward"] == 0 for one in tried)
    for one in tried:
        first, second = one["turns"]
        assert "Reply with the complete" in first["observation"]["text"]
        assert min(first["prompt_tokens"], second["prompt_tokens"], second["completion_tokens"]) > 0


def finqa(home: Path, *arguments: str) -> None:
    environment = {**os.environ, "FINQA_HOME": str(home / "home"), "OMP_NUM_THREADS": "1", "CI": "1"}
    command = [sys.executable, "-m", "finqa_cli", *arguments]
    ended = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "Traceback" not in ended.stderr


def episodes(run: Path) -> list[dict[str, Any]]:
    lines = (run / "trajectories.jsonl").read_text().splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda one: str(one["id"]))


def texts(episode: dict[str, Any]) -> list[str]:
    return [turn["text"] for turn in episode["turns"]]
