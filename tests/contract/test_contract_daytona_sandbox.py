from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from contract import sandbox_suite
from contract.sandbox_suite import ProviderFactory
from fixtures.daytona_provider import DaytonaBench

from finqa_cli.contracts import ImageBuilder
from finqa_cli.testing.daytona.loopback import LoopbackDaytona
from finqa_cli.types import SandboxSpec

Check = Callable[[ProviderFactory, SandboxSpec], Awaitable[None]]
WORKING: list[Check] = [
    sandbox_suite.check_life_of_a_box,
    sandbox_suite.check_boxes_are_told_apart,
    sandbox_suite.check_close_ends_everything,
    sandbox_suite.check_boxes_are_reaped_from_elsewhere,
    sandbox_suite.check_a_cancelled_start_leaves_nothing,
]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DaytonaBench:
    return DaytonaBench(tmp_path, monkeypatch, light=False)


@pytest.fixture
async def loopback(bench: DaytonaBench) -> AsyncIterator[LoopbackDaytona]:
    async with bench.loopback() as loopback:
        bench.use(loopback)
        yield loopback


@pytest.mark.parametrize("check", WORKING)
async def test_daytona(check: Check, bench: DaytonaBench, loopback: LoopbackDaytona) -> None:
    await check(bench.provider, bench.spec)
    stats = await loopback.control.stats()
    assert (stats["boxes"], stats["duplicates"], bench.files()) == (0, 0, [])


async def test_daytona_failed_start(bench: DaytonaBench, loopback: LoopbackDaytona) -> None:
    await loopback.control.break_image(bench.image)
    await sandbox_suite.check_a_failed_start_leaves_nothing(bench.provider, bench.spec)
    assert (await loopback.control.stats())["boxes"] == 0
    assert not bench.files()


def test_daytona_builds_images(bench: DaytonaBench) -> None:
    assert isinstance(bench.provider(), ImageBuilder)
