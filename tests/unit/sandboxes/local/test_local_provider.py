"""Server processes: shared, isolated, replaced when they die, and never left behind."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from finqa_cli.contracts import SandboxContext
from finqa_cli.errors import ConfigError, SandboxError, StorageError
from finqa_cli.processes import start_time
from finqa_cli.types import ServerSpec, Snapshot
from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
from finqa_plugins.sandboxes.local.local_provider import LocalSandbox, LocalSandboxProvider

TESTS = Path(__file__).parents[3]
RUN = {"finqa.run": "r"}
HANG_S = 60.0


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerSpec:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    return ServerSpec(
        snapshot=Snapshot(name="none", digest="sha256:0", path=tmp_path / "data"), module="fixtures.health_server"
    )


def provider(home: Path, **options: float) -> LocalSandboxProvider:
    config = LocalSandboxConfig.model_validate({"stop_timeout_s": 1.0, **options})
    return LocalSandboxProvider(config, SandboxContext(home=home))


async def sandboxes_of(provider: LocalSandboxProvider, spec: ServerSpec, count: int) -> list[LocalSandbox]:
    return await asyncio.gather(*(provider.start(spec, RUN) for _ in range(count)))


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def files(home: Path) -> list[Path]:
    return list((home / "local").iterdir())


async def test_sandboxes_are_spread_over_few_processes(spec: ServerSpec, tmp_path: Path) -> None:
    local = provider(tmp_path, sandboxes_per_process=4, processes=3)
    sandboxes = await sandboxes_of(local, spec, 30)
    loads = [sum(sandbox.pid == pid for sandbox in sandboxes) for pid in {sandbox.pid for sandbox in sandboxes}]
    assert sorted(loads) == [10, 10, 10]
    assert len(await local.list(RUN)) == 30
    await local.close()
    assert not files(tmp_path)


async def test_from_the_second_sandbox_on_there_are_two_processes(spec: ServerSpec, tmp_path: Path) -> None:
    local = provider(tmp_path)
    sandboxes = [await local.start(spec, RUN) for _ in range(5)]
    assert [len({sandbox.server_id for sandbox in sandboxes[:count]}) for count in (1, 2, 5)] == [1, 2, 2]
    assert {(sandbox.pid, sandbox.server_id) for sandbox in sandboxes} == {
        (sandbox.pid, sandbox.server_id) for sandbox in sandboxes[:2]
    }
    await local.close()


async def test_different_specs_share_nothing(spec: ServerSpec, tmp_path: Path) -> None:
    local = provider(tmp_path)
    first = await local.start(spec, RUN)
    second = await local.start(replace(spec, environment={"X": "1"}), RUN)
    assert first.pid != second.pid
    await local.close()


async def test_the_environment_is_clean(spec: ServerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "DAYTONA_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "HOME", "FINQA_SECRET"):
        monkeypatch.setenv(name, "CANARY")
    local = provider(tmp_path)
    sandbox = await local.start(replace(spec, environment={"FINQA_MAX_STEPS": "3", "PORT": "1"}), RUN)
    async with httpx.AsyncClient() as http:
        environment = (await http.get(sandbox.url() + "/environment")).json()
    assert "CANARY" not in json.dumps(environment)
    assert environment["FINQA_MAX_STEPS"] == "3"
    assert sandbox.url() == f"http://{environment['HOST']}:{environment['PORT']}"
    assert environment["FINQA_SNAPSHOT"] == str(tmp_path / "data")
    assert os.getsid(sandbox.pid) == sandbox.pid
    await local.close()


STOCK = ("python3", "-m", "http.server", "{port}", "--bind", "{host}")


async def test_a_command_serves_without_a_module_or_a_snapshot(tmp_path: Path) -> None:
    local = provider(tmp_path, commands=5)
    spec = ServerSpec(command=STOCK, health_path="/")
    sandbox, other = await sandboxes_of(local, spec, 2)
    assert await sandbox.healthy() and await other.healthy()
    assert sandbox.pid != other.pid, "another maker's server may take one session at a time"
    assert local.most_sandboxes(spec) == 5
    async with httpx.AsyncClient() as http:
        assert (await http.get(sandbox.url())).status_code == 200
    await local.close()
    assert not await sandbox.healthy()
    assert start_time(sandbox.pid) is None


async def test_a_command_that_is_not_there_says_so(tmp_path: Path) -> None:
    local = provider(tmp_path)
    with pytest.raises(SandboxError, match=r"no-such-program exited at start(.|\n)*cannot be started: No such file"):
        await local.start(ServerSpec(command=("no-such-program",)), RUN)
    await local.close()


async def test_an_image_is_refused(tmp_path: Path) -> None:
    local = provider(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot start the image ghcr\.io/stock:1"):
        await local.start(ServerSpec(image="ghcr.io/stock:1"), RUN)
    await local.close()


def test_a_server_is_named_in_one_way() -> None:
    for names in ({}, {"module": "m", "image": "i"}, {"module": "m", "command": ("c",)}):
        with pytest.raises(ValueError, match="exactly one of module, command and image"):
            ServerSpec(**names)


async def test_a_dead_process_is_replaced(spec: ServerSpec, tmp_path: Path) -> None:
    local = provider(tmp_path, processes=1)
    sandboxes = await sandboxes_of(local, spec, 3)
    os.kill(sandboxes[0].pid, signal.SIGKILL)
    await asyncio.sleep(0.1)
    assert not any([await sandbox.healthy() for sandbox in sandboxes])
    fresh = await local.start(spec, RUN)
    assert fresh.pid != sandboxes[0].pid
    assert await fresh.healthy()
    assert [info.id for info in await local.list(RUN)] == [fresh.id]
    for sandbox in sandboxes:
        await sandbox.stop()
    await local.close()
    assert not files(tmp_path)


async def test_a_hung_process_gets_no_new_sandboxes(
    spec: ServerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = provider(tmp_path, processes=1)
    sandbox = await local.start(spec, RUN)
    os.kill(sandbox.pid, signal.SIGSTOP)
    monkeypatch.setattr("finqa_plugins.sandboxes.local.server_process.ServerProcess.healthy.__defaults__", (0.2,))
    assert not await sandbox.healthy()
    fresh = await local.start(spec, RUN)
    assert fresh.pid != sandbox.pid
    await local.close()
    assert start_time(sandbox.pid) is None


async def test_an_answer_counts_for_all_sandboxes_of_a_process_until_it_dies(
    spec: ServerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finqa_plugins.sandboxes.local.local_provider.ANSWER_HOLDS_S", 60.0)
    local = provider(tmp_path, processes=1)
    sandboxes = await sandboxes_of(local, spec, 3)
    assert await sandboxes[0].healthy()
    os.kill(sandboxes[0].pid, signal.SIGSTOP)
    monkeypatch.setattr("finqa_plugins.sandboxes.local.server_process.ServerProcess.healthy.__defaults__", (0.2,))
    assert all([await sandbox.healthy() for sandbox in sandboxes])  # answered by the first check
    monkeypatch.setattr("finqa_plugins.sandboxes.local.local_provider.ANSWER_HOLDS_S", 0.0)
    assert not await sandboxes[1].healthy()
    os.kill(sandboxes[0].pid, signal.SIGCONT)
    assert await sandboxes[0].healthy()
    monkeypatch.setattr("finqa_plugins.sandboxes.local.local_provider.ANSWER_HOLDS_S", 60.0)
    os.kill(sandboxes[0].pid, signal.SIGKILL)
    await asyncio.sleep(0.1)
    assert not any([await sandbox.healthy() for sandbox in sandboxes])
    await local.close()


async def test_the_servers_last_words_are_told(spec: ServerSpec, tmp_path: Path) -> None:
    local = provider(tmp_path)
    outcomes = await asyncio.gather(
        *(local.start(replace(spec, environment={"HEALTH_MODE": "broken"}), RUN) for _ in range(3)),
        return_exceptions=True,
    )
    for outcome in outcomes:
        assert isinstance(outcome, SandboxError)
        assert outcome.message.endswith("the data is damaged: line 7")
    assert not files(tmp_path)
    with pytest.raises(SandboxError, match=r"not ready in 0.5 s"):
        late = provider(tmp_path, start_timeout_s=0.5)
        await late.start(replace(spec, environment={"HEALTH_MODE": "hanging"}), RUN)
    assert not files(tmp_path)
    with pytest.raises(SandboxError, match="No module named"):
        await local.start(replace(spec, module="fixtures.nowhere"), RUN)
    await local.close()


async def test_a_server_that_ignores_sigterm_is_killed(spec: ServerSpec, tmp_path: Path) -> None:
    local = provider(tmp_path, stop_timeout_s=0.2)
    sandbox = await local.start(replace(spec, environment={"HEALTH_MODE": "stubborn"}), RUN)
    await sandbox.stop()
    assert start_time(sandbox.pid) is None
    assert not files(tmp_path)


async def test_a_cancelled_close_leaves_no_process(spec: ServerSpec, tmp_path: Path) -> None:
    local = provider(tmp_path, stop_timeout_s=60.0)
    sandbox = await local.start(replace(spec, environment={"HEALTH_MODE": "stubborn"}), RUN)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await local.close()
    assert start_time(sandbox.pid) is None
    assert not files(tmp_path)


async def test_one_impatient_caller_spoils_nothing_for_others(spec: ServerSpec, tmp_path: Path) -> None:
    local = provider(tmp_path)
    impatient, patient = (asyncio.create_task(local.start(spec, RUN)) for _ in range(2))
    await asyncio.sleep(0.02)
    impatient.cancel()
    assert await (await patient).healthy()
    await local.close()


async def test_a_reused_pid_is_never_killed(spec: ServerSpec, tmp_path: Path) -> None:
    local = provider(tmp_path)
    sandbox = await local.start(spec, RUN)
    bystander = started("import time; time.sleep(60)")
    try:
        path = tmp_path / "local" / f"{sandbox.pid}.json"
        first, added = path.read_text().splitlines()
        forged = tmp_path / "local" / f"{bystander.pid}.json"
        stale = {**json.loads(first), "id": "stale", "pid": bystander.pid}
        forged.write_text(f"{json.dumps(stale)}\n{json.dumps({**json.loads(added), 'add': 'stale-1'})}\n")
        assert [info.id for info in await provider(tmp_path).list(RUN)] == [sandbox.id]
        await provider(tmp_path).reap("stale-1")
        assert bystander.poll() is None
        assert not forged.exists()
    finally:
        bystander.kill()
        bystander.communicate()
    await local.close()


async def test_foreign_files_in_the_ledger_are_ignored(spec: ServerSpec, tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    for name, text in {"1.json": "{", "2.json": "[]", "3.json": '{"pid": 1}', "x.txt": "hello"}.items():
        (tmp_path / "local" / name).write_text(text)
    assert not await provider(tmp_path).list({})
    await provider(tmp_path).reap("x")


async def test_a_ledger_that_cannot_be_written_starts_nothing(
    spec: ServerSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = provider(tmp_path, processes=1)
    (tmp_path / "local").mkdir()
    first = await local.start(spec, RUN)
    full = (tmp_path / "local" / f"{first.pid}.json").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (full, limits[1]))
    try:
        with pytest.raises(StorageError, match="ledger"):
            await local.start(spec, RUN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "ledger is out of date" in capsys.readouterr().out  # in memory, so the limit of file sizes does not apply
    assert await first.healthy() and [info.id for info in await local.list(RUN)] == [first.id]
    await local.close()
    assert not files(tmp_path)


PARENT = """
    import asyncio, sys, time
    from pathlib import Path
    from finqa_cli.contracts import SandboxContext
    from finqa_cli.types import ServerSpec, Snapshot
    from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
    from finqa_plugins.sandboxes.local.local_provider import LocalSandboxProvider

    async def main():
        home = Path(sys.argv[1])
        config = LocalSandboxConfig(sandboxes_per_process=1, processes=3)
        local = LocalSandboxProvider(config, SandboxContext(home=home))
        snapshot = Snapshot(name="none", digest="sha256:0", path=home)
        spec = ServerSpec(snapshot=snapshot, module="fixtures.health_server")
        command = ServerSpec(command=("python3", "-m", "http.server", "{port}", "--bind", "{host}"), health_path="/")
        for spec in (spec, spec, command):
            print((await local.start(spec, {"finqa.run": "r"})).pid, flush=True)
        time.sleep(60)

    asyncio.run(main())
"""


async def test_killing_the_parent_leaves_no_server(spec: ServerSpec, tmp_path: Path) -> None:
    parent = started(textwrap.dedent(PARENT), str(tmp_path))
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(parent.stdout.readline()) for _ in range(3)]
    assert len(await provider(tmp_path).list(RUN)) == 3
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + HANG_S
    while any(start_time(pid) is not None for pid in pids):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert not await provider(tmp_path).list(RUN)
    assert not files(tmp_path)


@pytest.mark.parametrize(
    ("variable", "value", "kind", "words"),
    [
        ("FINQA_MAX_STEPS", "-1", ConfigError, "FINQA_MAX_STEPS must be positive"),
        ("FINQA_SESSION_TIMEOUT", "soon", ConfigError, "bad environment variable"),
        ("", "", SandboxError, "is not a readable snapshot"),
    ],
)
async def test_the_real_server_says_why_it_does_not_start(
    tmp_path: Path, variable: str, value: str, kind: type[Exception], words: str
) -> None:
    snapshot = Snapshot(name="none", digest="sha256:0", path=tmp_path / "nowhere")
    spec = ServerSpec(
        snapshot=snapshot,
        module="finqa_plugins.environments.openenv_finqa.server.run_server",
        environment={variable: value} if variable else {},
    )
    local = provider(tmp_path)
    with pytest.raises(kind, match=words) as refused:
        await local.start(spec, RUN)
    assert (getattr(refused.value, "remedy", "") == "correct what its last output names") == (kind is ConfigError)
    await local.close()
