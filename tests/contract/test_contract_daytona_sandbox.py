from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from fixtures.daytona_provider import DaytonaBench

from finqa_cli.types import ExecutionSpec, SandboxSpec
from finqa_testing import LoopbackProcess
from finqa_testing.contract import execution_checks, sandbox_suite
from finqa_testing.contract.execution_checks import ProviderFactory

Check = Callable[[ProviderFactory, SandboxSpec], Awaitable[None]]
WORKING: list[Check] = [
    sandbox_suite.check_life_of_a_sandbox,
    sandbox_suite.check_sandboxes_are_told_apart,
    sandbox_suite.check_close_ends_everything,
    sandbox_suite.check_sandboxes_are_reaped_from_elsewhere,
    sandbox_suite.check_a_cancelled_start_leaves_nothing,
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaytonaBench]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield DaytonaBench(tmp_path_factory.mktemp("daytona"), monkeypatch, light=False)


@pytest.fixture(scope="module")
def loopback(bench: DaytonaBench) -> Iterator[LoopbackProcess]:
    """One for all checks, so that the real server behind the sandboxes is started once."""
    with LoopbackProcess(bench.loopback().config) as loopback:
        yield loopback


@pytest.mark.parametrize("check", WORKING)
async def test_daytona(
    check: Check, bench: DaytonaBench, loopback: LoopbackProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in loopback.environment.items():
        monkeypatch.setenv(name, value)
    await check(bench.provider, bench.spec)
    stats = await loopback.async_control.stats()
    assert (stats["sandboxes"], stats["duplicates"], bench.files()) == (0, 0, [])


@pytest.mark.parametrize("check", execution_checks.CHECKS)
async def test_daytona_executes(
    check: execution_checks.Check, bench: DaytonaBench, loopback: LoopbackProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in loopback.environment.items():
        monkeypatch.setenv(name, value)
    await check(bench.provider)
    stats = await loopback.async_control.stats()
    assert (stats["sandboxes"], stats["duplicates"], bench.files()) == (0, 0, [])


@pytest.mark.parametrize("check", WORKING[3:])
async def test_daytona_sandboxes_that_execute(
    check: Check, bench: DaytonaBench, loopback: LoopbackProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in loopback.environment.items():
        monkeypatch.setenv(name, value)
    await check(bench.provider, ExecutionSpec())
    stats = await loopback.async_control.stats()
    assert (stats["sandboxes"], stats["duplicates"], bench.files()) == (0, 0, [])


async def test_daytona_failed_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = DaytonaBench(tmp_path, monkeypatch, light=False)
    async with bench.loopback(broken_images=[bench.image]) as loopback:
        bench.use(loopback)
        await sandbox_suite.check_a_failed_start_leaves_nothing(bench.provider, bench.spec)
        assert (await loopback.control.stats())["sandboxes"] == 0
        assert not bench.files()


def test_daytona_builds_images(bench: DaytonaBench) -> None:
    assert bench.provider().builds_images
