"""Without `make test-vllm`, which names the interpreter, every test of this folder skips."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from vllm_server.running import KEY, KEY_VARIABLE, RANK, Vllm

from finqa_cli.contracts import EngineContext
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.vllm_command import launch
from finqa_plugins.engines.vllm.vllm_process import ServerProcess, free_port
from finqa_testing.contract.engine_play import make_adapter
from finqa_testing.tiny_models import make_tiny_qwen3

PYTHON = os.environ.get("FINQA_VLLM_PYTHON", "")
START_S = 500.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A server takes from 20 s to minutes to start."""
    for item in items:
        if item.nodeid.startswith("tests/vllm_server/"):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    if not PYTHON:
        pytest.skip("vLLM is not there: run `make test-vllm`")
    return Path(PYTHON).absolute()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("vllm-model") / "model")


@pytest.fixture(scope="session")
def adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("vllm-adapters")
    return [make_adapter(tiny_model, folder / str(seed), seed=seed) for seed in range(5)]


@pytest.fixture(scope="session")
def server(vllm_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """Started as the engine starts it, with the routes for sleeping and for weights in place."""
    config = VllmEngineConfig(python=vllm_python, max_loras=4)
    context = EngineContext(model=str(tiny_model), lora_rank=RANK)
    launched = launch(config, context, port=free_port(), key=KEY, gpu=False, environ=os.environ)
    launched.environment["VLLM_SERVER_DEV_MODE"] = "1"  # type: ignore[index]
    process = ServerProcess(launched, tmp_path_factory.mktemp("vllm-server") / "server.log")
    try:
        wait_for_health(process, launched.base_url)
        yield Vllm(launched.base_url, tiny_model)
    finally:
        asyncio.run(process.stop())


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


def wait_for_health(process: ServerProcess, base_url: str) -> None:
    health = base_url.removesuffix("/v1") + "/health"
    deadline = time.monotonic() + START_S
    while process.running() and time.monotonic() < deadline:
        try:
            with urlopen(Request(health, headers={"Authorization": f"Bearer {KEY}"}), timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"vLLM did not start:\n{process.output()[-3000:]}")
