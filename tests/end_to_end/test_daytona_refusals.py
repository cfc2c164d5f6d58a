"""What the `daytona` provider says when Daytona refuses, and what it keeps to itself."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path

import pytest
import structlog
from daytona import CreateSandboxFromSnapshotParams
from fixtures.daytona_provider import RUN, DaytonaBench, nothing_is_left

from finqa_cli.errors import AuthenticationError, DataError, FinqaError, SandboxError, ServiceUnavailableError
from finqa_testing.daytona.config import Faults


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DaytonaBench:
    return DaytonaBench(tmp_path, monkeypatch)


async def test_a_wrong_key_ends_every_start_at_once(bench: DaytonaBench) -> None:
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider(key="dtn_a-wrong-key-0123456789", create_limit=3)
        answers = await asyncio.gather(*(provider.start(bench.spec, RUN) for _ in range(10)), return_exceptions=True)
        for answer in answers:
            assert isinstance(answer, AuthenticationError) and answer.exit_code == 77
            assert "DAYTONA_API_KEY" in answer.remedy
            assert "0123456789" not in str(answer)
        assert (await loopback.control.stats())["unauthorised"] < 10
        await provider.close()


async def test_no_key(bench: DaytonaBench) -> None:
    provider = bench.provider()
    with pytest.raises(AuthenticationError, match="DAYTONA_API_KEY"):
        await provider.start(bench.spec, RUN)
    with pytest.raises(AuthenticationError):
        await provider.list(RUN)
    await provider.close()


async def test_an_address_in_a_dotenv_file_is_refused_in_one_line(
    bench: DaytonaBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / ".env").write_text("DAYTONA_API_URL=http://elsewhere.example/api\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider()
        with structlog.testing.capture_logs() as logs:
            assert await provider.list({}) == []
        await provider.close()
    assert [line["event"] for line in logs] == ["DAYTONA_API_URL set in a .env or .env.local file was ignored"]
    assert not [warning for warning in recwarn if "DAYTONA_API_URL" in str(warning.message)]


@pytest.mark.parametrize("state", ["missing", "inactive"])
async def test_an_image_that_is_not_ready(bench: DaytonaBench, state: str) -> None:
    async with bench.loopback(**({"images": {}} if state == "missing" else {})) as loopback:
        bench.use(loopback)
        if state != "missing":
            await loopback.control.set_snapshot_state(bench.image, state)
        provider = bench.provider()
        with pytest.raises(DataError, match="does not exist" if state == "missing" else state) as failure:
            await provider.start(bench.spec, RUN)
        name = bench.snapshot.name
        assert failure.value.remedy == f"finqa snapshot build --sandbox daytona --snapshot-name {name}"
        assert failure.value.exit_code == 65
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_a_quota_stops_the_starts_beyond_it_only(bench: DaytonaBench) -> None:
    async with bench.loopback(quota={"cpu": 4}) as loopback:
        bench.use(loopback)
        provider = bench.provider()
        answers = await asyncio.gather(*(provider.start(bench.spec, RUN) for _ in range(7)), return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        assert len(failures) == 3
        for failure in failures:
            assert isinstance(failure, ServiceUnavailableError) and not isinstance(failure, SandboxError)
            for way_out in ("--sandboxes", "--sessions-per-sandbox 32", "finqa sandbox reap", "tier"):
                assert way_out in failure.remedy
        assert (await loopback.control.stats())["sandboxes"] == 4
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_sandboxes_of_others_are_neither_shown_nor_ended(bench: DaytonaBench) -> None:
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider()
        stranger = await provider.start(bench.spec, {"team": "another"})
        assert not await provider.list({})
        with pytest.raises(FinqaError, match="unchanged"):
            await provider.reap(stranger.id)
        assert await stranger.healthy()
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_a_sandbox_of_others_with_a_name_of_ours_is_left_alone(
    bench: DaytonaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda length: "0" * 2 * length)
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider()
        theirs = CreateSandboxFromSnapshotParams(name="finqa-000000000000", snapshot=bench.image)
        stranger = await provider._cloud.client().create(theirs)
        with pytest.raises(SandboxError, match="used by a sandbox of another user"):
            await provider.start(bench.spec, RUN)
        await provider.close()
        assert [sandbox["id"] for sandbox in await loopback.control.sandboxes()] == [stranger.id]
        assert not bench.files()


async def test_the_key_is_nowhere(bench: DaytonaBench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    key = "dtn_canary-5d41402abc4b2a76b9719d911017c592"
    async with bench.loopback(api_key=key, faults={"start_failed": 0.5, "server_error": 0.1}) as loopback:
        bench.use(loopback)
        provider = bench.provider()
        with structlog.testing.capture_logs() as logs:
            answers = await asyncio.gather(*(provider.start(bench.spec, RUN) for _ in range(6)), return_exceptions=True)
            written = "".join(path.read_text() for path in bench.files())
            listed = str(await provider.list({}))
            sandboxes = json.dumps(await loopback.control.sandboxes())
            await loopback.control.set_faults(Faults())
            await provider.close()
        told = "".join(f"{answer!s}{answer!r}" for answer in answers) + str(logs) + caplog.text
        assert written and sandboxes != "[]"
        assert "finqa.box" in sandboxes, "the sandboxes are shown with their labels"
        for text in (written, listed, sandboxes, told, repr(provider._config)):
            assert key not in text
