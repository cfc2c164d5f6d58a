from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.isolation import needs_isolation

from finqa_cli.contracts import SandboxContext
from finqa_cli.types import ServerSpec, Snapshot
from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
from finqa_plugins.sandboxes.local.local_provider import LocalSandboxProvider
from finqa_testing.contract import execution_checks, sandbox_suite
from finqa_testing.contract.execution_checks import ProviderFactory

Check = Callable[[ProviderFactory, ServerSpec], Awaitable[None]]
WORKING: list[Check] = [
    sandbox_suite.check_life_of_a_sandbox,
    sandbox_suite.check_sandboxes_are_told_apart,
    sandbox_suite.check_close_ends_everything,
    sandbox_suite.check_sandboxes_are_reaped_from_elsewhere,
    sandbox_suite.check_a_cancelled_start_leaves_nothing,
]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerSpec:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    snapshot = Snapshot(name="none", digest="sha256:0", path=tmp_path)
    return ServerSpec(snapshot=snapshot, module="fixtures.health_server")


def providers(home: Path, **options: float) -> ProviderFactory:
    config = LocalSandboxConfig.model_validate({"processes": 2, "stop_timeout_s": 1.0, **options})
    return lambda: LocalSandboxProvider(config, SandboxContext(home=home))


@pytest.mark.parametrize("check", WORKING)
@pytest.mark.parametrize("sandboxes_per_process", [1, 64])
async def test_local(check: Check, spec: ServerSpec, tmp_path: Path, sandboxes_per_process: int) -> None:
    await check(providers(tmp_path, sandboxes_per_process=sandboxes_per_process), spec)
    assert not list((tmp_path / "local").iterdir())


async def test_local_failed_start(spec: ServerSpec, tmp_path: Path) -> None:
    broken = replace(spec, environment={"HEALTH_MODE": "broken"})
    await sandbox_suite.check_a_failed_start_leaves_nothing(providers(tmp_path), broken)
    assert not list((tmp_path / "local").iterdir())


@pytest.mark.parametrize("check", execution_checks.CHECKS)
@pytest.mark.parametrize("isolated", [True, False])
async def test_local_executions(check: execution_checks.Check, isolated: bool, tmp_path: Path) -> None:
    if isolated:
        needs_isolation()
    await check(providers(tmp_path, dangerously_run_unisolated=not isolated))
    assert not list((tmp_path / "local").iterdir())
