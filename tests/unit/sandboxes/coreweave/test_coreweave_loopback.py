"""The loopback CoreWeave itself: it ends with its owner, and its sandboxes run real commands."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cwsandbox import Sandbox
from unit.sandboxes.coreweave.conftest import CoreWeaveBench

from finqa_cli.processes import start_time

OWNER = """
import os, signal
from finqa_testing.coreweave.coreweave_loopback import LoopbackCoreWeave
loopback = LoopbackCoreWeave()
loopback.start()
print(loopback.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_commands_have_pipes_a_folder_and_an_exit_code(bench: CoreWeaveBench) -> None:
    sandbox = Sandbox(tags=["t"])
    await sandbox.start()
    process = sandbox.exec(["sh", "-c", "cat; pwd; echo no >&2; exit 3"], stdin=True)
    assert process.stdin is not None
    await process.stdin.write(b"yes\n")
    await process.stdin.close()
    ended = await process
    assert (ended.returncode, ended.stderr) == (3, "no\n")
    assert ended.stdout.startswith("yes\n/")
    assert (await sandbox.exec(["no-such-command"])).returncode == 127
    assert (await sandbox.exec(["python3", "-c", "import os; print(sorted(os.environ))"])).stdout.count("KEY") == 0
    await sandbox.stop(graceful_shutdown_seconds=0)
    assert not await asyncio.to_thread(Path(ended.stdout.split()[-1]).exists)


def test_it_ends_with_its_owner() -> None:
    owner = subprocess.run([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, timeout=60)
    assert owner.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while start_time(int(owner.stdout)) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_shell_can_have_it_in_the_background(capsys: pytest.CaptureFixture[str]) -> None:
    from finqa_testing.serve import main

    assert main(["coreweave", "--detach"]) == 0
    said = dict(line.removeprefix("export ").split("=", 1) for line in capsys.readouterr().out.splitlines())
    os.kill(int(said.pop("LOOPBACK_COREWEAVE_PID")), signal.SIGTERM)
    assert set(said) == {"CWSANDBOX_BASE_URL", "CWSANDBOX_API_KEY"}


@pytest.mark.parametrize("content", ["faults = 3", "unknown = 1", "["])
def test_a_wrong_config_is_told(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from finqa_testing.serve import main

    with pytest.raises(SystemExit):
        main(["coreweave", "--port", "99999"])
    path = tmp_path / "config.toml"
    path.write_text(content)
    assert main(["coreweave", "--config", str(path)]) == os.EX_CONFIG
    assert str(path) in capsys.readouterr().err
