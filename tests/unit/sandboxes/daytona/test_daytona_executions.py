"""Sandboxes at Daytona in which code is executed: what is asked for, and what happens when something fails."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from fixtures.daytona_provider import RUN, DaytonaBench, nothing_is_left

from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.errors import ConfigError, SandboxError
from finqa_cli.rollout.pool import SandboxPool
from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest, ExecutionSpec
from finqa_plugins.sandboxes._images.image_recipe import BASE_IMAGE
from finqa_plugins.sandboxes.daytona import daytona_sandbox
from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_listing import execution_params

ROOMY = ExecutionLimits(cpu_s=10.0, wall_s=30.0)


def program(text: str, stdin: bytes = b"") -> ExecutionRequest:
    return ExecutionRequest(argv=(PYTHON, "-I", "-c", text), stdin=stdin, limits=ROOMY)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DaytonaBench:
    return DaytonaBench(tmp_path, monkeypatch)


def test_a_sandbox_is_asked_for_without_network_and_without_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "dtn_secret")
    params = execution_params("finqa-a", RUN, DaytonaSandboxConfig(ttl_minutes=90, cpu=2))
    assert (params.network_block_all, params.os_user, params.public, params.env_vars) == (True, "root", False, None)
    assert (params.auto_delete_interval, params.ttl_minutes, params.name) == (0, 90, "finqa-a")
    assert params.resources is not None and (params.resources.cpu, params.resources.memory) == (2, 1)
    assert not isinstance(params.image, str) and params.image.dockerfile().startswith(f"FROM {BASE_IMAGE}\n")
    chosen = execution_params("finqa-a", RUN, DaytonaSandboxConfig(base_image="a", execution_image="b"))
    assert not isinstance(chosen.image, str) and chosen.image.dockerfile().startswith("FROM b\n")


async def test_what_daytona_holds_of_a_sandbox(bench: DaytonaBench) -> None:
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider()
        sandbox = await provider.start(ExecutionSpec(), RUN)
        remote = sandbox.remote
        await remote.refresh_data()
        assert (remote.network_block_all, remote.user, remote.labels["finqa.run"]) == (True, "root", "r")
        assert await bench.listed(RUN) == [sandbox.id]
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_requests_that_fail_and_replies_that_get_lost_change_no_result(bench: DaytonaBench) -> None:
    faults = {"lost_execution": 0.3, "server_error": 0.2}
    async with bench.loopback(seed=1, faults=faults) as loopback:
        bench.use(loopback)
        provider = bench.provider()
        sandbox = await provider.start(ExecutionSpec(), RUN)
        assert isinstance(sandbox, ExecutingSandbox)
        results = await asyncio.gather(*(sandbox.execute(program(f"print({n} ** 2)")) for n in range(6)))
        assert [result.stdout for result in results] == [f"{n**2}\n".encode() for n in range(6)]
        await provider.close()
        stats = await loopback.control.stats()
        assert stats["faults"]["lost_execution"] and stats["faults"]["server_error"]
        await nothing_is_left(bench, loopback)


async def test_input_beyond_a_command_line_travels_as_a_file(bench: DaytonaBench) -> None:
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider()
        sandbox = await provider.start(ExecutionSpec(), RUN)
        assert isinstance(sandbox, ExecutingSandbox)
        sent = b"".join(n.to_bytes(4, "big") for n in range(100_000, 200_000))
        look = "import sys, hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
        assert (await sandbox.execute(program(look, sent))).stdout.decode().strip() == hashlib.sha256(sent).hexdigest()
        await provider.close()


@pytest.mark.parametrize("leave", ["started", "destroyed"])
async def test_a_sandbox_that_dies_under_an_execution_is_a_fault_and_no_verdict(
    bench: DaytonaBench, leave: str
) -> None:
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider()
        sandbox = await provider.start(ExecutionSpec(), RUN)
        assert isinstance(sandbox, ExecutingSandbox)
        work = asyncio.create_task(sandbox.execute(program("import time; time.sleep(25)")))
        await asyncio.sleep(0.4)
        await loopback.control.kill([sandbox.id], leave=leave)
        with pytest.raises(SandboxError):
            await work
        assert not await sandbox.healthy()
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_a_supervisor_that_is_killed_in_a_sandbox_that_lives_is_the_codes_doing(
    bench: DaytonaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider()
        sandbox = await provider.start(ExecutionSpec(), RUN)
        assert isinstance(sandbox, ExecutingSandbox)
        monkeypatch.setattr(daytona_sandbox, "command", lambda request: (("sh", "-c", "kill -9 $$"), b""))
        found = await sandbox.execute(program("pass"))
        assert (found.ending, found.exit_code) == (Ending.KILLED, None)
        await provider.close()


async def test_an_image_with_an_old_python_is_refused_and_nothing_is_left(
    bench: DaytonaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daytona_sandbox, "OLDEST_PYTHON", (9, 9))
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider()
        with pytest.raises(ConfigError, match=r"older than 9\.9") as caught:
            await provider.start(ExecutionSpec(), RUN)
        assert "execution_image" in caught.value.remedy
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_an_image_that_cannot_be_built_says_why(bench: DaytonaBench) -> None:
    async with bench.loopback(build_fails="manifest unknown") as loopback:
        bench.use(loopback)
        provider = bench.provider(create_timeout_s=5.0)
        with pytest.raises(SandboxError, match="manifest unknown"):
            await provider.start(ExecutionSpec(), RUN)
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_fresh_sandboxes_host_one_session_each(bench: DaytonaBench) -> None:
    async with bench.loopback() as loopback:
        bench.use(loopback)
        pool = SandboxPool(
            bench.provider(), ExecutionSpec(fresh=True), size=2, max_concurrent_create=2, labels=RUN, breaker_share=0.1
        )
        await pool.start()
        hosts: list[str] = []

        async def session() -> None:
            async with pool.lease() as sandbox:
                assert isinstance(sandbox, ExecutingSandbox)
                hosts.append(sandbox.id)
                assert (await sandbox.execute(program("print('done')"))).stdout == b"done\n"

        await asyncio.gather(*(session() for _ in range(3)))
        assert len(set(hosts)) == 3 and pool.stats().lost == 0
        await pool.close()
        await nothing_is_left(bench, loopback)
