from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from daytona import AsyncDaytona, CreateSnapshotParams, DaytonaBadRequestError, DaytonaConfig, Image
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_cli.contracts import SandboxContext, SandboxProvider
from finqa_cli.errors import AuthenticationError, FinqaError, ServiceUnavailableError
from finqa_cli.types import ServerSpec, Snapshot
from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_cloud import Cloud as DaytonaClient
from finqa_plugins.sandboxes.daytona.daytona_images import Images, _BuildLog
from finqa_plugins.sandboxes.daytona.daytona_provider import DaytonaSandboxProvider
from finqa_plugins.sandboxes.daytona.daytona_recipe import image_name, make_recipe
from finqa_testing import Delay, Faults, Latency, LoopbackConfig, LoopbackDaytona

BUILD = "POST /api/snapshots"
SLOW = Latency(build=Delay(median_s=0.7))
SLOWER = Latency(build=Delay(median_s=3.6))


class Cloud:
    """A loopback Daytona and a provider that uses it."""

    def __init__(self, loopback: LoopbackDaytona, folder: Path) -> None:
        self.loopback = loopback
        self.folder = folder
        self.log: list[str] = []
        snapshot = replace(write_tiny_snapshot(folder / "snapshot"), name="mine")
        self.spec = ServerSpec(snapshot=snapshot, module="finqa_plugins.environments.openenv_finqa.server.run_server")
        self.name = image_name(self.spec, DaytonaSandboxConfig())

    @asynccontextmanager
    async def builder(self, **options: Any) -> AsyncIterator[SandboxProvider]:
        provider = DaytonaSandboxProvider(DaytonaSandboxConfig(**options), SandboxContext(home=self.folder))
        assert provider.builds_images
        try:
            yield provider
        finally:
            await provider.close()

    async def build(self, **options: Any) -> tuple[str, bool]:
        async with self.builder(**options) as builder:
            image, new = await builder.build_image(self.spec, self.log.append)
        assert image.state == "active" and image.snapshot == "mine" and image.created > 0
        assert image.digest == f"sha256:{image.name[-12:]}"
        return image.name, new

    async def builds(self) -> int:
        return sum((await self.loopback.control.stats())["requests"].get(BUILD, {}).values())

    async def state(self) -> str:
        async with self.builder() as builder:
            return next((image.state for image in await builder.images() if image.name == self.name), "")

    async def until(self, state: str) -> None:
        for _ in range(1200):
            if await self.state() == state:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"never {state}")


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("finqa_plugins.sandboxes.daytona.daytona_images._POLL_S", 0.05)

    @asynccontextmanager
    async def open_cloud(**config: Any) -> AsyncIterator[Cloud]:
        async with LoopbackDaytona(LoopbackConfig(**config)) as loopback:
            for name, value in loopback.environment.items():
                monkeypatch.setenv(name, value)
            with loopback.trusted():
                yield Cloud(loopback, tmp_path)

    return open_cloud


async def test_a_build_streams_its_log_and_is_done_once(cloud: Any) -> None:
    async with cloud(latency=SLOW) as at:
        building = asyncio.create_task(at.build())
        while not any("FROM python:3.12-slim" in line for line in at.log):
            assert not building.done(), "the log must be heard while the build runs"
            await asyncio.sleep(0.05)
        assert await building == (at.name, True)
        assert [line for line in at.log if "pip install" in line] and all(
            line.strip() == line.rstrip() for line in at.log
        )
        heard = len(at.log)
        assert await at.build() == (at.name, False)
        assert len(at.log) == heard and await at.builds() == 1


async def test_an_interrupted_build_is_waited_for_and_not_sent_again(cloud: Any) -> None:
    async with cloud(latency=SLOWER) as at:
        building = asyncio.create_task(at.build())
        await at.until("building")
        building.cancel()
        with pytest.raises(asyncio.CancelledError):
            await building
        assert await at.build() == (at.name, True)
        assert any("is already being built;" in line for line in at.log) and await at.builds() == 1
        assert await at.build() == (at.name, False)


async def test_two_builds_at_once_make_one_image(cloud: Any) -> None:
    async with cloud(latency=SLOW) as at:
        results = await asyncio.gather(at.build(), at.build())
        assert {name for name, _ in results} == {at.name}
        async with at.builder() as builder:
            assert [image.name for image in await builder.images()] == [at.name]


async def test_a_build_that_is_given_up_leaves_another_its_log(cloud: Any) -> None:
    async with cloud(latency=SLOWER) as at:
        kept = asyncio.create_task(at.build())
        while not any("FROM python:3.12-slim" in line for line in at.log):
            assert not kept.done(), "the log must be heard while the build runs"
            await asyncio.sleep(0.05)
        given_up = asyncio.create_task(at.build(cpu=2))
        while await at.builds() < 2:
            assert not given_up.done()
            await asyncio.sleep(0.05)
        given_up.cancel()
        await asyncio.wait({given_up})
        assert given_up.cancelled() and not kept.done()
        assert await kept == (at.name, True)


async def test_a_failed_build_shows_the_end_of_its_log_and_is_done_again(cloud: Any) -> None:
    async with cloud(latency=SLOW, build_fails="executor failed running pip install") as at:
        with pytest.raises(FinqaError, match="executor failed running pip install") as caught:
            await at.build()
        assert f"Building image {at.name} failed" in caught.value.message and type(caught.value) is FinqaError
        assert "The end of its log:" in caught.value.message and at.log[-2] in caught.value.message
        assert caught.value.remedy == "finqa snapshot build --sandbox daytona --snapshot-name mine"
        assert (await at.state()).startswith("build_failed: executor failed")
        await at.loopback.control.set_build_fails("")
        assert await at.build() == (at.name, True)
        assert any(line.startswith(f"Removing the remains of image {at.name}: executor") for line in at.log)
        assert await at.builds() == 2 and await at.state() == "active"


async def test_an_image_at_rest_is_activated(cloud: Any) -> None:
    async with cloud() as at:
        await at.build()
        await at.loopback.control.set_snapshot_state(at.name, "inactive")
        assert await at.build() == (at.name, False)
        assert await at.builds() == 1 and f"Activating image {at.name}." in at.log


async def test_a_service_that_fails_half_of_the_time_does_not_fail_a_build(cloud: Any) -> None:
    async with cloud(latency=SLOW, faults=Faults(server_error=0.5), seed=3) as at:
        assert (await at.build())[0] == at.name
        async with at.builder() as builder:
            assert await builder.delete_images("mine") == [at.name]
        assert (await at.loopback.control.stats())["faults"]["server_error"] >= 3


async def test_a_build_that_takes_too_long_goes_on_without_us(cloud: Any) -> None:
    async with cloud(latency=Latency(build=Delay(median_s=15.0))) as at:
        begun = asyncio.create_task(at.build())
        await at.until("building")
        begun.cancel()
        with pytest.raises(
            ServiceUnavailableError, match=r"was not ready after 0\.5 s; the build itself continues."
        ) as caught:
            await at.build(build_timeout_s=0.5)
        assert "waits for it" in caught.value.remedy
        assert await at.state() == "building"


async def test_only_images_of_this_snapshot_are_deleted(cloud: Any) -> None:
    async with cloud() as at:
        await at.build()
        other = replace(at.spec, snapshot=replace(at.spec.snapshot, name="mine-too"))
        config = DaytonaConfig(api_key=at.loopback.api_key, api_url=at.loopback.api_url)
        async with at.builder() as builder, AsyncDaytona(config) as daytona:
            image, _ = await builder.build_image(other, at.log.append)
            await daytona.snapshot.create(CreateSnapshotParams(name="mine-0123456789ab", image=Image.base("debian")))
            assert [one.snapshot for one in await builder.images()] == ["mine", "mine-too"]
            assert await builder.delete_images("mine") == [at.name]
            assert [one.name for one in await builder.images()] == [image.name]
            assert await builder.delete_images("mine") == []
            assert (await daytona.snapshot.get("mine-0123456789ab")).state == "active"


async def test_the_account_sees_the_pinned_dockerfile_and_the_resources(cloud: Any) -> None:
    async with cloud() as at:
        name, _ = await at.build(base_image="python:3.12", cpu=2, memory_gib=4, disk_gib=5)
        assert any("names no digest" in line for line in at.log)
        config = DaytonaConfig(api_key=at.loopback.api_key, api_url=at.loopback.api_url)
        async with AsyncDaytona(config) as daytona:
            built = await daytona.snapshot.get(name)
        assert built.build_info is not None and built.build_info.dockerfile_content.startswith("FROM python:3.12\n")
        assert (built.cpu, built.mem, built.disk) == (2, 4, 5)


async def test_without_a_right_key_nothing_is_built(cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cloud() as at:
        monkeypatch.setenv("DAYTONA_API_KEY", "dtn_wrong_key_9f8e")
        with pytest.raises(AuthenticationError, match="rejected the API key") as refused:
            await at.build()
        monkeypatch.delenv("DAYTONA_API_KEY")
        with pytest.raises(AuthenticationError, match="DAYTONA_API_KEY is not set") as missing:
            await at.build()
        assert "dtn_wrong" not in refused.value.message and "dashboard/keys" in missing.value.remedy
        assert await at.builds() == 0


def test_too_many_images_are_mended_by_deleting_some() -> None:
    config = DaytonaSandboxConfig()
    spec = ServerSpec(snapshot=Snapshot(name="mine", digest="sha256:0", path=Path("/nowhere")), module="finqa_cli.app")
    full = DaytonaBadRequestError("Snapshot quota exceeded. Maximum allowed: 30", status_code=400)
    told = Images(DaytonaClient(config), config)._refused(full, make_recipe(spec, config))
    assert isinstance(told, ServiceUnavailableError) and "Maximum allowed: 30" in told.message
    assert told.remedy.startswith("finqa snapshot list --sandbox daytona, and delete an old one")


def test_a_log_is_heard_in_lines_without_control_characters() -> None:
    heard: list[str] = []
    log = _BuildLog(heard.append)
    log.hear("\x1b[1mStep 1\x1b[0m (SnapshotState.BUILDING)\n\n  kept indent\r50 %\r100 %\x07")
    for number in range(40):
        log.hear(f"line {number}")
    assert heard[:4] == ["Step 1 (BUILDING)", "  kept indent", "50 %", "100 %"] and len(heard) == 44
    assert log.ending().splitlines()[1:3] == ["The end of its log:", "  line 20"]
    assert _BuildLog(heard.append).ending() == ""
