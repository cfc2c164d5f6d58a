"""The pool on real server processes of the local provider, which are killed and frozen while leases are out."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from finqa_cli.contracts import SandboxContext
from finqa_cli.errors import SandboxError
from finqa_cli.rollout.pool import SandboxPool
from finqa_cli.types import ServerSpec, Snapshot
from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
from finqa_plugins.sandboxes.local.local_provider import LocalSandbox, LocalSandboxProvider
from finqa_plugins.sandboxes.local.server_process import ServerProcess

SANDBOXES = 12
EACH_SERVER = 6
HANG_S = 60.0


def make_pool(home: Path, config: LocalSandboxConfig, **options: Any) -> SandboxPool:
    """A pool of twelve sandboxes that are looked at each second."""
    provider = LocalSandboxProvider(config, SandboxContext(home=home))
    spec = ServerSpec(snapshot=Snapshot(name="none", digest="sha256:0", path=home), module="fixtures.health_server")
    sizes = {"size": SANDBOXES, "max_concurrent_create": SANDBOXES}
    return SandboxPool(provider, spec, **sizes, labels={}, health_check_s=1.0, **options)


@pytest.fixture
async def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SandboxPool]:
    """Twelve sandboxes on two servers, looked at each second and given two seconds to answer."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(ServerProcess.healthy, "__defaults__", (2.0,))
    config = LocalSandboxConfig(processes=2, sandboxes_per_process=EACH_SERVER, stop_timeout_s=0.5)
    pool = make_pool(tmp_path, config)
    try:
        await pool.start()
        await pool.settled()
        assert pool.alive == SANDBOXES
        yield pool
    finally:
        await pool.close()
    assert not list((tmp_path / "local").iterdir()), "servers or their files are left"


class Players:
    """One client on each sandbox, each awaiting what never comes."""

    def __init__(self, pool: SandboxPool, count: int) -> None:
        self.sandboxes: dict[asyncio.Task[None], LocalSandbox] = {}
        self.cut_at: dict[asyncio.Task[None], float] = {}
        self.tasks = [asyncio.create_task(self._play(pool)) for _ in range(count)]

    async def _play(self, pool: SandboxPool) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with pool.lease() as sandbox:
                assert isinstance(sandbox, LocalSandbox)
                self.sandboxes[task] = sandbox
                await asyncio.Event().wait()
        except SandboxError:
            self.cut_at[task] = time.monotonic()
            raise

    async def strike(self, number: signal.Signals) -> float:
        """Sends a signal to one of the servers; returns the longest time until one of its players was cut, in s."""
        await asyncio.sleep(0.05)
        pid = next(iter(self.sandboxes.values())).pid
        hit = [task for task, sandbox in self.sandboxes.items() if sandbox.pid == pid]
        others = [task for task in self.tasks if task not in hit]
        assert 0 < len(hit) <= EACH_SERVER
        began = time.monotonic()
        os.kill(pid, number)
        await asyncio.wait(hit, timeout=HANG_S)
        assert all(isinstance(task.exception(), SandboxError) for task in hit if task.done())
        assert all(task.done() for task in hit) and not any(task.done() for task in others)
        return max(self.cut_at[task] for task in hit) - began

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def back_to_full_size(pool: SandboxPool) -> None:
    async with asyncio.timeout(HANG_S):
        while pool.alive < SANDBOXES or pool.stats().idle < SANDBOXES:  # noqa: ASYNC110  what is waited for is a poll
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_leases_on_a_struck_server_are_cut_soon_and_its_sandboxes_replaced(
    pool: SandboxPool, number: signal.Signals
) -> None:
    players = Players(pool, SANDBOXES)
    seconds = await players.strike(number)
    assert seconds < 30.0, "the usual interval is 15 s and a check takes up to 5: this pool's own were used"
    await players.leave()
    await back_to_full_size(pool)
    assert pool.stats().lost == pool.stats().replaced == EACH_SERVER


async def test_deaths_of_a_shared_server_are_single_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pool = make_pool(tmp_path, LocalSandboxConfig(processes=1, stop_timeout_s=0.5), breaker_share=0.2)
    await pool.start()
    await pool.settled()
    for _ in range(4):
        players = Players(pool, SANDBOXES)
        await asyncio.sleep(0.05)
        os.kill(next(iter(players.sandboxes.values())).pid, signal.SIGKILL)
        assert all(
            isinstance(end, SandboxError) for end in await asyncio.gather(*players.tasks, return_exceptions=True)
        )
        await back_to_full_size(pool)
    assert pool.stats().lost == 4 * SANDBOXES
    await pool.close()


async def test_a_server_that_dies_while_it_starts_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pool = make_pool(tmp_path, LocalSandboxConfig(stop_timeout_s=0.5), breaker_share=0.2)
    await pool.start()
    starting = {int(file.stem) for file in (tmp_path / "local").glob("*.json")}
    assert len(starting) == 2
    for pid in starting:
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(HANG_S):
        async with pool.lease() as sandbox:
            assert isinstance(sandbox, LocalSandbox) and sandbox.pid not in starting
    assert pool.stats().start_failures == SANDBOXES
    await pool.close()
