"""`finqa doctor` about the Daytona account, and what a failure of the SDK is told as."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from daytona.common.errors import create_daytona_error
from daytona_api_client_async.models.region_usage_overview import RegionUsageOverview
from fixtures.daytona_provider import DaytonaBench

from finqa_cli.masking import MASK
from finqa_cli.types import Check
from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_doctor import quota_check, room
from finqa_plugins.sandboxes.daytona.plugin import doctor_checks, explain_error


def settings(
    sandboxes: int = 4, snapshot: str = "tiny", digest: str = "", environment: str = "finqa", **options: object
) -> dict[str, object]:
    return {
        "environment": {"name": environment},
        "sandbox": {"name": "daytona", "options": options},
        "pool": {"sandboxes": sandboxes},
        "data": {"snapshot": snapshot, "digest": digest},
    }


async def examined(**chosen: object) -> dict[str, Check]:
    """As `finqa doctor` does it: in a thread of its own."""
    found = await asyncio.to_thread(lambda: doctor_checks(settings=settings(**chosen)))  # type: ignore[arg-type]
    return {check.name: check for check in found}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DaytonaBench:
    return DaytonaBench(tmp_path, monkeypatch)


async def test_an_account_that_is_ready(bench: DaytonaBench) -> None:
    async with bench.loopback() as loopback:
        bench.use(loopback)
        found = await examined(snapshot=bench.snapshot.name)
    assert {name: check.status for name, check in found.items()} == {
        "daytona key": "ok",
        "daytona quota": "ok",
        "daytona image": "ok",
    }
    assert loopback.api_key not in str(found)


async def test_an_account_that_is_too_small_and_has_no_image(bench: DaytonaBench) -> None:
    async with bench.loopback(quota={"cpu": 3}, images={}) as loopback:
        bench.use(loopback)
        found = await examined(sandboxes=500)
    quota, image = found["daytona quota"], found["daytona image"]
    assert (quota.status, quota.remedy[:13]) == ("warn", "--sandboxes 3")
    assert "CPU" in quota.detail and "3 of 500" in quota.detail
    assert (image.status, image.remedy) == (
        "fail",
        "finqa snapshot build --sandbox daytona --snapshot-name tiny",
    )


async def test_sandboxes_that_execute_code_need_no_image(bench: DaytonaBench) -> None:
    async with bench.loopback(images={}) as loopback:
        bench.use(loopback)
        image = (await examined(environment="code", execution_image="python:3.13"))["daytona image"]
    assert image.status == "ok" and "nothing needs building" in image.detail and "python:3.13" in image.detail


async def test_an_image_of_other_data_or_code_is_not_enough(bench: DaytonaBench) -> None:
    name, digest = bench.snapshot.name, bench.snapshot.digest
    async with bench.loopback() as loopback:
        bench.use(loopback)
        assert (await examined(snapshot=name, digest=digest))["daytona image"].status == "ok"
        for other in ({"digest": "sha256:" + "0" * 64}, {"digest": digest, "cpu": 2}):
            image = (await examined(snapshot=name, **other))["daytona image"]
            assert (image.status, image.remedy.split(" --")[0]) == ("fail", "finqa snapshot build")
            assert "hold other data or another version" in image.detail


async def test_a_wrong_key_and_no_key(bench: DaytonaBench, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench.loopback() as loopback:
        bench.use(loopback)
        monkeypatch.setenv("DAYTONA_API_KEY", "another-key")
        (key,) = (await examined()).values()
        assert (key.name, key.status) == ("daytona key", "fail") and "DAYTONA_API_KEY" in key.remedy
        monkeypatch.delenv("DAYTONA_API_KEY")
        (key,) = (await examined()).values()
        assert (key.name, key.status) == ("daytona key", "fail") and "DAYTONA_API_KEY" in key.remedy
        (key,) = (await examined(api_key=MASK)).values()
        assert key.status == "warn"


async def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finqa_plugins.sandboxes.daytona.daytona_doctor.DEADLINE_S", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("DAYTONA_API_KEY", "a-key")
        monkeypatch.setenv("DAYTONA_API_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/api")
        (found,) = (await examined()).values()
        assert found.status == "fail" and "did not respond" in found.detail
        monkeypatch.undo()
        monkeypatch.setenv("DAYTONA_API_KEY", "a-key")
        monkeypatch.setenv("DAYTONA_API_URL", "http://127.0.0.1:9/api")
        (found,) = (await examined()).values()
        assert found.status == "fail" and "asking http://127.0.0.1:9/api" in found.detail


def test_other_providers_are_not_asked() -> None:
    assert doctor_checks(settings={"sandbox": {"name": "local", "options": {}}}) == []


def usage(region: str, cpu: int, memory: int, disk: int, used: int = 0) -> RegionUsageOverview:
    return RegionUsageOverview.model_construct(
        region_id=region,
        total_cpu_quota=cpu,
        current_cpu_usage=used,
        total_memory_quota=memory,
        current_memory_usage=used,
        total_disk_quota=disk,
        current_disk_usage=3 * used,
    )


def test_room_by_tier() -> None:
    config = DaytonaSandboxConfig()
    tiers = [usage("us", 10, 10, 30), usage("us", 100, 200, 300), usage("us", 250, 500, 2000)]
    assert [room([tier], config).sandboxes for tier in tiers] == [10, 100, 250]
    assert room([usage("us", 500, 1000, 5000, used=20)], config).sandboxes == 480
    assert (
        room([usage("us", 500, 1000, 900)], config).sandboxes,
        room([usage("us", 500, 1000, 900)], config).resource,
    ) == (
        300,
        "disk",
    )
    elsewhere = [usage("us", 10, 10, 30), usage("eu", 500, 1000, 5000)]
    assert room(elsewhere, DaytonaSandboxConfig(target="us")).sandboxes == 10
    assert room(elsewhere, config).sandboxes == 500
    assert room([], config).sandboxes == 0


def test_what_is_said_about_room() -> None:
    config = DaytonaSandboxConfig()
    enough = quota_check(room([usage("us", 500, 1000, 5000)], config), 500, config)
    assert enough.status == "ok" and "60 s" in enough.detail
    assert quota_check(room([usage("us", 0, 0, 0)], config), 1, config).status == "fail"


def test_a_failure_of_the_sdk_that_nobody_caught_has_a_remedy() -> None:
    told = explain_error(error=create_daytona_error("Invalid credentials", status_code=401))
    assert told is not None and "DAYTONA_API_KEY" in told
    assert explain_error(error=ValueError("not of Daytona")) is None


@pytest.mark.parametrize(
    "options",
    [{"cpu": 0}, {"unknown": 1}, {"url_ttl_s": 100_000}, {"keepalive_s": 600, "auto_stop_minutes": 10}],
)
def test_options_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"cpu|unknown|url_ttl_s|keepalive_s"):
        DaytonaSandboxConfig.model_validate(options)
    assert doctor_checks(settings=settings(**options)) == []  # type: ignore[arg-type]
