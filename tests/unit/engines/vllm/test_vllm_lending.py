"""A started server that other processes ask: its address, its key on every path, and its death."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fixtures.direct_play import DirectWorld, check_versions
from fixtures.lora_files import make_base, make_lora
from fixtures.served_tokens import ask
from fixtures.token_server import weights_of
from fixtures.token_vllm import token_vllm

from finqa_cli.contracts import EngineContext
from finqa_cli.types import PolicyVersion
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.in_server.finqa_vllm_key import RequireKey
from finqa_plugins.engines.vllm.vllm_command import launch
from finqa_plugins.engines.vllm.vllm_engine import VllmEngine

NODE = "127.0.0.7"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = make_base(tmp_path / "base")
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


def vllm(model: Path, tmp_path: Path, **changes: Any) -> VllmEngine:
    context = EngineContext(model=str(model), lora_rank=8, needs_tokens=True, lends=True, host=NODE, log_dir=tmp_path)
    config = VllmEngineConfig(python=token_vllm(tmp_path / "program", **changes), start_timeout_s=60)
    return VllmEngine(config, context)


async def test_a_server_at_an_address_of_the_node_answers_nobody_without_its_key(model: Path, tmp_path: Path) -> None:
    engine = vllm(model, tmp_path)
    await engine.start()
    try:
        loan = engine.lend()
        assert loan is not None
        (route,) = loan.routes
        assert route is not None and route.server.host == NODE
        sent: Any = pickle.loads(pickle.dumps(route))
        url = sent.server.connection.base_url
        async with aiohttp.ClientSession() as stranger:
            for path in ("/v1/models", "/health", "/metrics", "/invocations"):
                async with stranger.get(url.removesuffix("/v1") + path) as reply:
                    assert reply.status == 401, path
        assert sent.server.key.get_secret_value() not in repr(sent)
        client = sent.server.connect(1)
        completion = await client.generate(ask("e#0"), sent)
        assert completion.policy_version == 0 and client.usage("e")["requests"] == 1 and client.usage("f") == {}
        await client.close()
        loan.end()
    finally:
        await engine.close()
    assert engine.lend() is None


async def test_a_server_that_is_killed_is_started_again_and_asked_by_the_workers(model: Path, tmp_path: Path) -> None:
    folder = make_lora(tmp_path / "v1", seed=1)
    engine = vllm(model, tmp_path, delay_s=0.01)
    world = DirectWorld(engine)
    await world.engine.start()
    await world.engine.load(PolicyVersion(number=1, model=str(model), adapter=folder))

    async def kill() -> None:
        while not world.world.workers._pending:  # noqa: ASYNC110  no event says so
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        (first,) = (tmp_path / "program").glob("served-*.json")
        os.kill(int(first.stem.partition("-")[2]), signal.SIGKILL)

    played = await world.play(60, kill)
    assert check_versions(played, {1: weights_of(folder)}) == {1}
    starts = [json.loads(each.read_text()) for each in (tmp_path / "program").glob("served-*.json")]
    assert len(starts) == 2 and starts[0]["--port"] == starts[1]["--port"]


def test_every_server_can_import_what_guards_it(tmp_path: Path) -> None:
    def launched(**context: Any) -> Any:
        asked = EngineContext(model="org/model", **context)
        config = VllmEngineConfig(env={"PYTHONPATH": "/elsewhere"})
        return launch(config, asked, port=1, key="k", gpu=False, environ={"PATH": os.environ["PATH"]})

    at_node = launched(host="10.0.0.5")
    assert at_node.base_url == "http://10.0.0.5:1/v1" and launched(host="fd00::5").base_url == "http://[fd00::5]:1/v1"
    for server in (at_node, launched(), launched(sleep=True), launched(lora_rank=0)):
        module = server.arguments[server.arguments.index("--middleware") + 1].rpartition(".")[0]
        assert server.environment["PYTHONPATH"].endswith(":/elsewhere")
        program = [sys.executable, "-c", f"import {module}; print({module}.RequireKey.__name__)"]
        found = subprocess.run(program, env=dict(server.environment), capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "RequireKey"
    changed_in_place = launched(host="10.0.0.5", lora_rank=0)
    assert changed_in_place.base_url.startswith("http://127.0.0.1:"), "it opens routes that run any method"


async def test_every_path_needs_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    passed: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    async def asked(kind: str, *headers: tuple[bytes, bytes]) -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message.get("status") or message.get("code") or message["type"])

        async def receive() -> Any: ...

        await RequireKey(app)({"type": kind, "headers": headers}, receive, send)
        return sent

    right, wrong = (b"authorization", b"Bearer secret"), (b"authorization", b"Bearer secre")
    assert await asked("http", right) == await asked("websocket", right) == await asked("lifespan") == []
    assert passed == ["http", "websocket", "lifespan"]
    for headers in ((), (wrong,), (right, wrong), ((b"x-api-key", b"secret"),)):
        assert await asked("http", *headers) == [401, "http.response.body"]
        assert await asked("websocket", *headers) == [1008]
    assert len(passed) == 3
