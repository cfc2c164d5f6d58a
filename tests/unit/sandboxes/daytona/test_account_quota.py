"""Creates of one account by several processes: never more than the limit in any window, and hardly fewer."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fixtures.create_process import check_rate

from finqa_cli.contracts import SandboxContext
from finqa_cli.errors import StorageError
from finqa_plugins.sandboxes._quota import shared_quota
from finqa_plugins.sandboxes._quota.shared_quota import FileQuota, WindowFile, account_digest, open_quota
from finqa_plugins.sandboxes._quota.sliding_window import SETTLE_S
from finqa_testing.daytona.config import LoopbackConfig
from finqa_testing.daytona.loopback import LoopbackDaytona

WINDOW_S = 60.0
TESTS = Path(__file__).parents[3]

TAKES_AND_PRINTS = """
import sys, time
from pathlib import Path
from finqa_plugins.sandboxes._quota.shared_quota import WindowFile
file, until = WindowFile(Path(sys.argv[1]), "a"), time.monotonic() + 60
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
while time.monotonic() < until:
    if (grant := file.take(20, 0.5)).wait_s == 0:
        print(time.monotonic(), flush=True)
        file.end(grant.ticket)
"""


def take_all(file: WindowFile, limit: int) -> list[int]:
    """Tickets of a full window."""
    tickets = [grant.ticket for _ in range(limit) if (grant := file.take(limit, WINDOW_S)).wait_s == 0]
    assert len(tickets) == limit
    return tickets


def test_files_of_one_account_are_one_window_and_those_of_another_are_not(tmp_path: Path) -> None:
    first, second = WindowFile(tmp_path, "a"), WindowFile(tmp_path, "a")
    tickets = take_all(first, 3)
    assert second.take(3, WINDOW_S).wait_s == pytest.approx(WINDOW_S + SETTLE_S, abs=1.0)
    second.end(tickets[0])
    assert first.take(3, WINDOW_S).wait_s == pytest.approx(WINDOW_S, abs=1.0)
    second.end(tickets[1], sent=False)
    assert first.take(3, WINDOW_S).wait_s == 0.0
    assert WindowFile(tmp_path, "b").take(3, WINDOW_S).wait_s == 0.0
    second.pause(100.0)
    assert first.take(300, WINDOW_S).wait_s == pytest.approx(100.0, abs=1.0)


def test_a_shorter_window_forgets_nothing_of_a_longer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, began = WindowFile(tmp_path, "a"), time.monotonic()
    take_all(file, 3)
    monkeypatch.setattr(time, "monotonic", lambda: began + 30.0)
    assert file.take(3, 10.0).wait_s == 0.0
    assert file.take(3, WINDOW_S).wait_s > 0.0


@pytest.mark.parametrize("content", [b"", b'{"schema_version":1,"next_tic', b"[]", b'{"schema_version":2}', b"\xff"])
def test_after_a_damaged_file_nothing_is_granted_for_one_window(content: bytes, tmp_path: Path) -> None:
    file = WindowFile(tmp_path, "a")
    file.end(file.take(5, WINDOW_S).ticket)
    file.path.write_bytes(content)
    for _ in range(2):  # the second finds the file that the first wrote
        assert file.take(5, WINDOW_S).wait_s == pytest.approx(WINDOW_S, abs=1.0)


def test_times_of_another_clock_hold_a_place_for_no_longer_than_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, began = WindowFile(tmp_path, "a"), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + 1e6)
    take_all(file, 1)
    monkeypatch.setattr(time, "monotonic", lambda: began)
    assert file.take(1, WINDOW_S).wait_s <= WINDOW_S + SETTLE_S + 0.1
    monkeypatch.setattr(time, "monotonic", lambda: began + WINDOW_S + SETTLE_S + 0.1)
    assert file.take(1, WINDOW_S).wait_s == 0.0


def test_after_a_start_of_the_machine_nothing_is_granted_for_its_first_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_all(WindowFile(tmp_path, "a"), 1)
    monkeypatch.setattr(shared_quota, "_boot", lambda: "later")
    monkeypatch.setattr(time, "monotonic", lambda: 20.0)
    assert WindowFile(tmp_path, "a").take(1, WINDOW_S).wait_s == pytest.approx(40.0)
    assert WindowFile(tmp_path, "b").take(1, WINDOW_S).wait_s == 0.0
    monkeypatch.setattr(shared_quota, "_boot", lambda: "much later")
    for path in tmp_path.iterdir():
        os.utime(path, (time.time() - 10**6,) * 2)
    assert WindowFile(tmp_path, "a").take(1, WINDOW_S).wait_s == 0.0
    assert len(list(tmp_path.glob("a-*.json"))) == 1


def test_a_lock_that_is_never_released_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_quota, "LOCK_S", 0.05)
    file = WindowFile(tmp_path, "a")
    with file.path.with_suffix(".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another process has locked it") as caught:
            file.take(1, WINDOW_S)
    assert "FINQA_HOME=DIR" in caught.value.remedy


def test_the_key_is_not_in_names_or_files(tmp_path: Path) -> None:
    digest = account_digest("daytona", "https://x", "dtn_secret")
    assert digest != account_digest("daytona", "https://x", "dtn_other")
    quota = open_quota(SandboxContext(home=tmp_path), digest, 3, WINDOW_S)
    assert isinstance(quota, FileQuota)
    asyncio.run(quota.take())  # type: ignore[arg-type]
    quota.close()
    (path,) = tmp_path.rglob("*.json")
    assert "secret" not in str(path) and json.loads(path.read_text())["counted_by"]


def test_processes_that_are_killed_neither_block_nor_exceed_the_window(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TAKES_AND_PRINTS, str(tmp_path)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(3)
    ]
    granted: list[float] = []
    try:
        for process in started:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.write("\n")  # type: ignore[union-attr]
        for process in started[:2]:  # killed while they take, end and wait as fast as they can
            granted.append(float(process.stdout.readline()))  # type: ignore[union-attr]
            process.send_signal(signal.SIGKILL)
            granted += [float(line) for line in process.stdout if line.endswith("\n")]  # type: ignore[union-attr]
        granted += [float(started[2].stdout.readline()) for _ in range(40)]  # type: ignore[union-attr]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    times = sorted(granted)
    assert max(sum(start <= at < start + 0.5 for at in times) for start in times) <= 20


@pytest.mark.slow
async def test_two_runs_and_four_workers_keep_the_limit_of_their_account(tmp_path: Path) -> None:
    limit, window_s, each = 12, 20.0, 6
    async with LoopbackDaytona(LoopbackConfig(create_limit=0, create_window_s=window_s)) as loopback:
        environment = {**os.environ, **loopback.environment, "PYTHONPATH": str(TESTS)}
        command = [sys.executable, "-m", "fixtures.create_process", str(tmp_path), str(each), str(limit), str(window_s)]
        processes = [
            await asyncio.create_subprocess_exec(
                *command, env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            for _ in range(6)
        ]
        try:
            for process in processes:
                assert process.stdout is not None and await process.stdout.readline() == b"ready\n"
            ended = await asyncio.gather(*(process.communicate(b"\n") for process in processes))
            assert len(ended) == 6 and {process.returncode for process in processes} == {0}
            created = [sandbox["created"] for sandbox in await loopback.control.sandboxes()]
            assert (await loopback.control.stats())["busiest_window"] <= limit
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
    assert len(created) == 6 * each
    check_rate(created, limit, window_s)
