"""The real AsyncDaytona of the SDK against the loopback: sandboxes, commands and files."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from daytona import (
    AsyncDaytona,
    AsyncSandbox,
    Daytona,
    DaytonaAuthenticationError,
    DaytonaConfig,
    DaytonaError,
    DaytonaNotFoundError,
    ListSandboxesQuery,
    SandboxState,
    SessionExecuteRequest,
)
from daytona.common.errors import DaytonaConflictError, DaytonaForbiddenError
from daytona_api_client_async import ApiKeysApi, OrganizationsApi
from fixtures.loopback_daytona import FINQA, connected, create, serve, until_healthy
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_testing import Delay, Latency, LoopbackConfig, LoopbackDaytona, Quota


async def until_gone(daytona: AsyncDaytona, name: str) -> None:
    """Returns when the sandbox is not found."""
    start = time.monotonic()
    while time.monotonic() - start < 60:
        try:
            await daytona.get(name)
        except DaytonaNotFoundError:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} is still there")


async def until_over(sandbox: AsyncSandbox, command: str) -> int:
    """The exit code of a session's command."""
    for _ in range(1200):
        if (code := (await sandbox.process.get_session_command("server", command)).exit_code) is not None:
            return code
        await asyncio.sleep(0.05)
    raise AssertionError("the command never ended")


async def test_a_sandbox_is_made_found_listed_changed_and_deleted() -> None:
    async with connected() as (loopback, daytona):
        sandbox = await create(daytona, name="finqa-1", labels={"finqa.run": "r1"}, ttl_minutes=60, ephemeral=True)
        other = await create(daytona, name="finqa-2", labels={"finqa.run": "r2"}, auto_stop_interval=30)
        assert sandbox.state == SandboxState.STARTED
        assert sandbox.env["FINQA_SNAPSHOT"] == "/opt/finqa/snapshot"
        assert (sandbox.auto_delete_interval, other.auto_stop_interval) == (0, 30)
        assert (await daytona.get("finqa-1")).id == (await daytona.get(sandbox.id)).id == sandbox.id
        mine = [found.name async for found in daytona.list(ListSandboxesQuery(labels={"finqa.run": "r1"}))]
        assert mine == ["finqa-1"]
        assert [found.name async for found in daytona.list(ListSandboxesQuery(limit=1))] == ["finqa-1", "finqa-2"]
        await sandbox.set_labels({"finqa.run": "r3"})
        await sandbox.set_autostop_interval(7)
        await sandbox.refresh_data()
        assert sandbox.labels["finqa.run"] == "r3"
        assert sandbox.auto_stop_interval == 7
        await daytona.delete(sandbox, wait=True)
        with pytest.raises(DaytonaNotFoundError, match="finqa-1"):
            await daytona.get("finqa-1")
        stats = await loopback.control.stats()
        assert (stats["sandboxes"], stats["sandboxes_ever"], stats["creates"]["accepted"]) == (1, 2, 2)
        assert stats["sandboxes_by_label"]["finqa.run=r2"] == 1
        assert stats["requests"]["POST /api/sandbox"] == {"200": 2}


async def test_the_blocking_sdk_works_too() -> None:
    async with LoopbackDaytona() as loopback:

        def make_and_delete() -> str:
            daytona = Daytona(DaytonaConfig(api_key=loopback.api_key, api_url=loopback.api_url))
            sandbox = daytona.create()
            result = sandbox.process.exec("echo from the sandbox").result
            daytona.delete(sandbox)
            return result

        assert await asyncio.to_thread(make_and_delete) == "from the sandbox\n"


async def test_a_wrong_key_a_taken_name_and_an_unknown_snapshot_are_refused() -> None:
    async with connected() as (loopback, daytona):
        await create(daytona, name="finqa-1")
        with pytest.raises(DaytonaConflictError, match="finqa-1 already exists"):
            await create(daytona, name="finqa-1")
        with pytest.raises(DaytonaError, match="Snapshot nothing not found"):
            await create(daytona, "nothing")
        stranger = AsyncDaytona(DaytonaConfig(api_key="wrong", api_url=loopback.api_url))
        with pytest.raises(DaytonaAuthenticationError):
            await create(stranger)
        await stranger.close()
        stats = await loopback.control.stats()
        assert (stats["unauthorised"], stats["name_conflicts"], stats["duplicates"], stats["sandboxes"]) == (1, 1, 0, 1)


async def test_quotas_are_held_and_reported() -> None:
    async with connected(LoopbackConfig(quota=Quota(cpu=2, memory_gib=100, disk_gib=100))) as (_, daytona):
        first, _second = await create(daytona), await create(daytona)
        with pytest.raises(DaytonaForbiddenError, match=r"Total CPU limit exceeded. Maximum allowed: 2"):
            await create(daytona)
        key = await ApiKeysApi(daytona._api_client).get_current_api_key()
        usage = await OrganizationsApi(daytona._api_client).get_organization_usage_overview(key.organization_id)
        (region,) = usage.region_usage
        assert (region.current_cpu_usage, region.total_cpu_quota, region.current_disk_usage) == (2, 2, 6)
        await daytona.delete(first)
        assert (await create(daytona)).state == SandboxState.STARTED


async def test_slow_starts_slow_deletes_and_stale_lists() -> None:
    slow = Latency(start=Delay(median_s=3.0), delete=Delay(median_s=2.5))
    async with connected(LoopbackConfig(latency=slow, stale_list_s=2.5)) as (loopback, daytona):
        creating = asyncio.create_task(create(daytona, name="finqa-1"))
        while not (await loopback.control.stats())["sandboxes"]:  # noqa: ASYNC110  the account does not report when a create arrives
            await asyncio.sleep(0.02)
        assert (await daytona.get("finqa-1")).state == SandboxState.CREATING
        assert [sandbox async for sandbox in daytona.list()] == []
        with pytest.raises(DaytonaError, match="state change in progress"):
            await (await daytona.get("finqa-1")).delete()
        sandbox = await creating
        assert [found.name async for found in daytona.list()] == ["finqa-1"]
        await daytona.delete(sandbox)
        assert (await daytona.get("finqa-1")).state == SandboxState.DESTROYING
        await until_gone(daytona, "finqa-1")
        assert [found.name async for found in daytona.list()] == ["finqa-1"]
        await asyncio.sleep(3.0)
        assert [found async for found in daytona.list()] == []
        assert (await loopback.control.stats())["sandboxes"] == 0


async def test_the_clock_stops_deletes_and_destroys_sandboxes() -> None:
    async with connected(LoopbackConfig(minute_s=0.25)) as (_, daytona):
        await create(daytona, name="ephemeral", ephemeral=True, auto_stop_interval=4)
        kept = await create(daytona, name="kept", auto_stop_interval=4)
        await create(daytona, name="short", auto_stop_interval=0, ttl_minutes=8)
        await create(daytona, name="forever", auto_stop_interval=0)
        busy = await create(daytona, name="busy", auto_stop_interval=4)
        for _ in range(25):
            await asyncio.sleep(0.1)
            await busy.refresh_activity()
        states = {sandbox.name: sandbox.state async for sandbox in daytona.list()}
        assert states == {
            "kept": SandboxState.STOPPED,
            "forever": SandboxState.STARTED,
            "busy": SandboxState.STARTED,
        }
        await daytona.start(kept)
        assert kept.state == SandboxState.STARTED


async def test_commands_run_and_servers_are_shared() -> None:
    async with connected() as (loopback, daytona):
        sandboxes = [await create(daytona, name=f"finqa-{number}") for number in range(3)]
        urls = [await serve(sandbox) for sandbox in sandboxes]
        for url in urls:
            await until_healthy(url)
        assert len((await loopback.control.stats())["servers"]) == 1
        session = await sandboxes[0].process.get_session("server")
        assert session.commands[0].exit_code is None
        done = await sandboxes[0].process.execute_session_command(
            "server", SessionExecuteRequest(command="echo a; exit 3")
        )
        assert (done.exit_code, done.output) == (3, "a\n")
        late = SessionExecuteRequest(command="sleep 0.1; echo later", run_async=True)
        started = await sandboxes[0].process.execute_session_command("server", late)
        assert await until_over(sandboxes[0], started.cmd_id) == 0
        assert (await sandboxes[0].process.get_session_command_logs("server", started.cmd_id)).output == "later\n"
        assert (await sandboxes[0].process.exec("sleep 9", timeout=1)).exit_code == 124
        own = await create(daytona)
        await until_healthy(await serve(own, prefix="COLOUR=red "))
        assert len((await loopback.control.stats())["servers"]) == 2


async def test_a_server_that_cannot_start_says_why() -> None:
    async with connected(LoopbackConfig(broken_images=("daytonaio/sandbox",))) as (_, daytona):
        sandbox = await create(daytona)
        await serve(sandbox)
        (command,) = (await sandbox.process.get_session("server")).commands
        assert command.exit_code == 1
        assert "ModuleNotFoundError" in (await sandbox.process.get_session_command_logs("server", command.id)).output
    async with connected() as (_, daytona):
        sandbox = await create(daytona)
        await serve(sandbox, "no_such_module")
        (command,) = (await sandbox.process.get_session("server")).commands
        assert await until_over(sandbox, command.id) == 1
        assert "no_such_module" in (await sandbox.process.get_session_command_logs("server", command.id)).output


async def test_files_are_written_and_read(tmp_path: Path) -> None:
    snapshot = write_tiny_snapshot(tmp_path / "snapshot")
    content = bytes(range(256)) * 100 + b"\r\n--\r\n"
    async with connected(LoopbackConfig(images={"tiny": snapshot.path})) as (_, daytona):
        sandbox = await create(daytona, "tiny")
        await sandbox.fs.upload_file(content, "/tmp/data.bin")
        assert await sandbox.fs.download_file("/tmp/data.bin") == content
        assert (await sandbox.process.exec("wc -c < /tmp/data.bin")).result.strip() == str(len(content))
        assert (
            await sandbox.fs.download_file("/opt/finqa/snapshot/manifest.json")
            == (snapshot.path / "manifest.json").read_bytes()
        )
        await sandbox.fs.upload_file(b"x", "../../../../escape")
        assert await sandbox.fs.download_file("/escape") == b"x"
        with pytest.raises(DaytonaError, match="not found"):
            await sandbox.fs.download_file("/tmp/none.bin")


async def test_the_real_environment_server_runs_behind_a_sandbox(tmp_path: Path) -> None:
    snapshot = write_tiny_snapshot(tmp_path / "snapshot")
    async with connected(LoopbackConfig(images={"tiny": snapshot.path})) as (_, daytona):
        await until_healthy(await serve(await create(daytona, "tiny"), FINQA))
