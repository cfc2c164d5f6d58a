"""The `openai` engine against a server that others wrote: `transformers serve` with the embedded policy."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document
from fixtures.reserved_ports import reserved_port

import finqa_plugins.policies

MODEL = str(Path(finqa_plugins.policies.__file__).parent)
SERVE = Path(sys.executable).with_name("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("empty_folder")]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not SERVE.exists() or importlib.util.find_spec("uvicorn") is None:
        pytest.skip("needs `transformers serve`: transformers and uvicorn")
    said = tmp_path_factory.mktemp("serve") / "log"
    with reserved_port() as port:
        with said.open("wb") as log:
            command = [str(SERVE), "serve", "--host", "127.0.0.1", "--port", str(port)]
            server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ})
        try:
            _wait(f"http://127.0.0.1:{port}/v1", server, said)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            server.wait(timeout=30)


def _wait(url: str, server: subprocess.Popen[bytes], said: Path) -> None:
    for _ in range(240):
        assert server.poll() is None, said.read_text()[-2000:]
        try:
            urllib.request.urlopen(f"{url}/models", timeout=5).close()
            return
        except OSError:
            time.sleep(0.25)
    raise AssertionError(said.read_text()[-2000:])


def _episodes(report: dict[str, Any]) -> dict[str, Any]:
    lines = (Path(report["run"]) / "trajectories.jsonl").read_text().splitlines()
    records = {record["id"]: record for record in map(json.loads, lines)}
    return {name: ([turn["tool_call"] for turn in one["turns"]], one["reward"]) for name, one in records.items()}


def test_greedy_episodes_are_those_of_the_token_engine(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages, tool calls and their ids go through another's chat template and parser, and nothing changes."""
    play = ["--split=test", "--limit=12", "--max-steps=8", "--max-gen-tokens=160", "--sandboxes=4"]
    served = document(
        ["eval", MODEL, "--engine=openai", "--set", f"engine.options.base_url={url}", "--run-dir=a", *play], capsys
    )
    here = document(["eval", MODEL, "--engine=transformers", "--run-dir=b", *play], capsys)
    assert served["faults"] == here["faults"] == 0 and served["episodes"] == 12
    assert _episodes(served) == _episodes(here)
