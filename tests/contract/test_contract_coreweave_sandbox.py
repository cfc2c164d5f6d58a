from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from finqa_cli.contracts import SandboxContext
from finqa_cli.types import ExecutionSpec, SandboxSpec
from finqa_plugins.sandboxes.coreweave.coreweave_provider import CoreWeaveSandboxProvider
from finqa_testing.contract import execution_checks, sandbox_suite
from finqa_testing.contract.execution_checks import ProviderFactory
from finqa_testing.coreweave.coreweave_loopback import LoopbackCoreWeave
from finqa_testing.coreweave.coreweave_service import CoreWeaveConfig, CoreWeaveFaults

Check = Callable[[ProviderFactory, SandboxSpec], Awaitable[None]]
WORKING: list[Check] = [
    sandbox_suite.check_life_of_a_sandbox,
    sandbox_suite.check_sandboxes_are_told_apart,
    sandbox_suite.check_close_ends_everything,
    sandbox_suite.check_sandboxes_are_reaped_from_elsewhere,
    sandbox_suite.check_a_cancelled_start_leaves_nothing,
]


@pytest.fixture(scope="module")
def loopback() -> Iterator[LoopbackCoreWeave]:
    with LoopbackCoreWeave() as loopback:
        yield loopback


@pytest_asyncio.fixture
async def make(
    loopback: LoopbackCoreWeave, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ProviderFactory]:
    for name, value in loopback.environment.items():
        monkeypatch.setenv(name, value)
    yield lambda: CoreWeaveSandboxProvider(None, SandboxContext(home=tmp_path))
    stats = await loopback.control.stats()
    assert (stats["sandboxes"], stats["duplicates"]) == ([], 0)


@pytest.mark.parametrize("check", WORKING)
async def test_coreweave(check: Check, make: ProviderFactory) -> None:
    await check(make, ExecutionSpec())


async def test_coreweave_failed_start(make: ProviderFactory, loopback: LoopbackCoreWeave) -> None:
    await loopback.control.configure(CoreWeaveConfig(faults=CoreWeaveFaults(start_failed=1.0)))
    try:
        await sandbox_suite.check_a_failed_start_leaves_nothing(make, ExecutionSpec())
    finally:
        await loopback.control.configure(CoreWeaveConfig())


@pytest.mark.parametrize("check", execution_checks.CHECKS)
async def test_coreweave_executions(check: execution_checks.Check, make: ProviderFactory) -> None:
    await check(make)


async def test_coreweave_builds_no_images(make: ProviderFactory) -> None:
    provider = make()
    assert not provider.builds_images and not await provider.images()
    with pytest.raises(NotImplementedError, match="builds no images"):
        await provider.delete_images("mine")
