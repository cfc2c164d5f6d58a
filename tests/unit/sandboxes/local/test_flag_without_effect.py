from __future__ import annotations

from pathlib import Path

import pytest

from finqa_cli.contracts import SandboxContext
from finqa_cli.errors import ConfigError, MissingDependencyError
from finqa_cli.types import ServerSpec, Snapshot
from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
from finqa_plugins.sandboxes.local.local_provider import LocalSandboxProvider


async def test_no_isolation_is_refused_where_no_code_would_be_executed(tmp_path: Path) -> None:
    provider = LocalSandboxProvider(
        LocalSandboxConfig(dangerously_run_unisolated=True), SandboxContext(home=tmp_path / "home")
    )
    spec = ServerSpec(snapshot=Snapshot(name="s", digest="sha256:0", path=tmp_path), module="fixtures.health_server")
    with pytest.raises(ConfigError, match="would have no effect"):
        await provider.start(spec, {})
    assert not await provider.list({})
    await provider.close()


async def test_what_a_server_needs_is_asked_of_servers_only(tmp_path: Path) -> None:
    provider = LocalSandboxProvider(None, SandboxContext(home=tmp_path / "home"))
    spec = ServerSpec(
        snapshot=Snapshot(name="s", digest="sha256:0", path=tmp_path),
        module="fixtures.health_server",
        requires=("asyncio", "no_such_package"),
        extra="openenv",
    )
    with pytest.raises(MissingDependencyError, match=r"health_server needs no_such_package, which") as raised:
        await provider.start(spec, {})
    assert raised.value.remedy == "pip install 'finqa[openenv]'" and not await provider.list({})
    await provider.close()
