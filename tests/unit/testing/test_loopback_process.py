"""The command line, and that nothing is left behind, however it ends."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fixtures.loopback_daytona import client, connected, create, serve, until_healthy

from finqa_testing import LoopbackConfig, LoopbackProcess
from finqa_testing.daytona.loopback import own_folder
from finqa_testing.daytona.loopback_control import Control
from finqa_testing.serve import main

COMMAND = [sys.executable, "-m", "finqa_testing.serve", "daytona"]
OWNER = """
import asyncio, os, signal, sys
from fixtures.loopback_daytona import client, create, serve, until_healthy
from finqa_testing import LoopbackProcess

async def main():
    loopback = LoopbackProcess()
    loopback.start()
    async with client(loopback) as daytona:
        await until_healthy(await serve(await create(daytona)))
    stats = loopback.control.stats()
    print(loopback.pid, *stats["servers"], loopback.environment["LOOPBACK_DAYTONA_CA"], flush=True)
    os.kill({target}, signal.SIGKILL)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_dead(pids: list[int], seconds: float = 60.0) -> list[int]:
    """Those that still live after so long."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_nothing_is_left_after_close() -> None:
    files, threads = open_files(), threading.active_count()
    async with connected() as (loopback, daytona):
        folder = Path(loopback.environment["LOOPBACK_DAYTONA_CA"]).parents[1]
        sandbox = await create(daytona)
        await until_healthy(await serve(sandbox))
        started = await sandbox.process.exec("sleep 60 > /dev/null 2>&1 & echo $!")
        pids = [*(await loopback.control.stats())["servers"], int(started.result)]
        assert all(alive(pid) for pid in pids) and folder.is_dir()
    assert until_dead(pids) == []
    assert not folder.exists()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert threading.active_count() == threads
    assert open_files() <= files
    await loopback.close()


def test_a_process_ends_with_its_block() -> None:
    files = open_files()
    with LoopbackProcess(LoopbackConfig(seed=5)) as loopback:
        pid, port = loopback.pid, loopback.port
        assert loopback.control.stats()["sandboxes"] == 0
    assert not alive(pid)
    assert open_files() == files
    with pytest.raises(OSError):
        Control(port, "key").stats()


@pytest.mark.parametrize("target", ["os.getpid()", "loopback.pid"])
def test_nothing_is_left_when_the_owner_or_the_loopback_is_killed(target: str) -> None:
    script = OWNER.replace("{target}", target)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        *words, path = owner.stdout.readline().split()
        pids = [int(word) for word in words]
        try:
            assert len(pids) == 2
            assert until_dead(pids) == []
        finally:
            owner.kill()
    with own_folder():
        assert not Path(path).exists()  # a killed one leaves its folder to the next one


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_line_serves_until_it_is_told_to_stop(tmp_path: Path, number: int) -> None:
    config = tmp_path / "loopback.toml"
    config.write_text('api_key = "a-key-of-mine"\n[faults]\nhang = 0.0\n', encoding="utf-8")
    with subprocess.Popen([*COMMAND, "--config", str(config)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        try:
            assert lines[0].startswith("export DAYTONA_API_URL=http://127.0.0.1:")
            assert lines[1] == "export DAYTONA_API_KEY=a-key-of-mine\n"
            process.send_signal(number)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_a_shell_can_evaluate_what_is_printed() -> None:
    script = f"""
    eval "$({shlex.join(COMMAND)} --detach)"
    {shlex.quote(sys.executable)} -c 'import json, os; print(json.dumps(dict(os.environ)))'
    kill $LOOPBACK_DAYTONA_PID
    """
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, timeout=90, check=True)
    seen = json.loads(done.stdout)
    assert seen["DAYTONA_API_URL"].endswith("/api")
    assert until_dead([int(seen["LOOPBACK_DAYTONA_PID"])]) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [('{"faults": {"hang": 2}}', "less than or equal to 1"), ('{"unknown": 1}', "unknown"), ("[", "Expecting value")],
)
def test_a_wrong_configuration_is_said(
    tmp_path: Path, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "loopback.json"
    config.write_text(content, encoding="utf-8")
    assert main(["daytona", "--config", str(config)]) == 78
    assert message in capsys.readouterr().err


def test_a_port_that_is_none_or_taken_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["daytona", "--port", "99999"])
    assert "a port is a number up to 65535" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["daytona", "--port", str(taken.getsockname()[1])]) == 69
    assert "Cannot listen" in capsys.readouterr().err


async def test_a_process_serves_the_sdk_and_its_own_control() -> None:
    async with LoopbackProcess() as loopback, client(loopback) as daytona:
        sandbox = await create(daytona, name="finqa-1")
        assert await loopback.async_control.kill(share=1.0) == [sandbox.id]
        assert (await loopback.async_control.stats())["sandboxes_by_state"] == {"error": 1}
