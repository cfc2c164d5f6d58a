"""A server that is dead when its turn to sleep comes. The server is a small one that speaks as vLLM does."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from fixtures import token_server as fixture
from fixtures.token_server import token_server

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import EngineError, UnreachableEngineError
from finqa_cli.types import GenerateRequest, Sampling
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.vllm_engine import VllmEngine

ASKED = GenerateRequest(key="a", token_ids=(1, 2), sampling=Sampling(max_tokens=3, seed=1))
MODEL = "org/model"
PROGRAM = f"""#!{sys.executable}
import os, pathlib, sys, threading
sys.path[:0] = [{str(Path(fixture.__file__).parents[1])!r}]
from fixtures.token_server import TokenServerFixture
class Controls(list):
    def append(self, route):
        with pathlib.Path(__file__).with_name("controls").open("a") as file:
            file.write(f"{{os.getpid()}} {{route}}\\n")
server = TokenServerFixture({MODEL!r}, os.environ["VLLM_API_KEY"])
server.names, server.development, server.controls = ["policy"], True, Controls()
server.port = int(sys.argv[sys.argv.index("--port") + 1])
server.start()
threading.Event().wait()
"""


def context(tmp_path: Path) -> EngineContext:
    return EngineContext(model=MODEL, lora_rank=0, sleep=True, log_dir=tmp_path / "logs")


async def test_a_dead_server_is_restarted_before_it_sleeps(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    config = VllmEngineConfig.model_validate({"python": program, "start_timeout_s": 60})
    engine = VllmEngine(config, context(tmp_path))
    try:
        await engine.start()
        before = await engine.generate(ASKED)
        dead = engine.server_pid
        assert dead is not None
        os.killpg(dead, signal.SIGKILL)
        await engine.sleep()
        with pytest.raises(EngineError, match="sleeps"):
            await engine.generate(ASKED)
        slept = [line.split()[0] for line in (tmp_path / "controls").read_text().splitlines() if "/sleep" in line]
        assert len(slept) == 1 and engine.server_pid != dead, "the new server sleeps"
        await engine.wake()
        assert await engine.generate(ASKED) == before
    finally:
        await engine.close()


async def test_a_server_of_others_that_is_gone_cannot_be_reached(tmp_path: Path) -> None:
    with token_server(MODEL) as server:
        server.development = True
        engine = VllmEngine(VllmEngineConfig.model_validate({"url": server.url}), context(tmp_path))
        try:
            await engine.start()
            server.stop()
            with pytest.raises(UnreachableEngineError):
                await engine.sleep()
            server.start()
            await engine.sleep()
            server.stop()
            with pytest.raises(UnreachableEngineError):
                await engine.wake()
            assert server.controls == ["/resume", "/sleep"]
        finally:
            await engine.close()
