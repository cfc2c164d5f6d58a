from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.errors import EnvironmentFault
from finqa_plugins.environments._openenv.openenv_client import OpenEnvClient
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.sandboxes.local.server_process import ServerProcess


async def test_a_session_that_nobody_uses_expires(tmp_path: Path) -> None:
    environment = FinQAEnvironment(None, EnvironmentContext(snapshot=write_tiny_snapshot(tmp_path / "snapshot")))
    spec = environment.sandbox_spec()
    assert spec is not None
    server = ServerProcess(
        replace(spec, environment={**spec.environment, "FINQA_SESSION_TIMEOUT": "4"}), tmp_path / "server.log"
    )
    try:
        await server.wait_until_healthy(60.0)
        idle, busy = OpenEnvClient(server.url), OpenEnvClient(server.url)
        for client in (idle, busy):
            await client.connect()
            await client.reset(seed=1)
        for _ in range(20):  # openenv-core looks every five seconds
            await asyncio.sleep(0.5)
            assert "done" in await busy.state()
        with pytest.raises(EnvironmentFault, match="expired"):  # a fault, so retried and never scored
            await idle.call_tool("submit_answer", {"answer": "1"})
        await busy.close()
    finally:
        await server.stop(3.0)
