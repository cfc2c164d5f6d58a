"""Records that come together are made durable together, and what counts is on disk even if the process is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from finqa_cli.errors import StorageError
from finqa_cli.runs.jsonl import GroupCommit, read_jsonl

PATIENCE_S = 30.0


class SlowDisk:
    """Real fsync calls, counted; while `closed` they wait, as those of a busy disk do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.free = threading.Event()
        self.free.set()
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, descriptor: int) -> None:
        self.calls += 1
        assert self.free.wait(PATIENCE_S)
        self._fsync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


def numbers(path: Path) -> list[int]:
    return [record["n"] for record in read_jsonl(path)]


async def fsyncs(disk: SlowDisk, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while disk.calls < count:  # noqa: ASYNC110  a thread counts
            await asyncio.sleep(0.001)


async def test_what_comes_during_one_fsync_shares_the_next_one(tmp_path: Path, disk: SlowDisk) -> None:
    file = GroupCommit(tmp_path / "x.jsonl")
    disk.free.clear()
    first = asyncio.wrap_future(file.append(lambda: {"n": 0}))
    await fsyncs(disk, 1)
    later = [asyncio.wrap_future(file.append(lambda n=n: {"n": n})) for n in range(1, 300)]  # type: ignore[misc]
    await asyncio.sleep(0)
    assert not first.done() and not any(one.done() for one in later), "no loop waits for the disk, and nothing counts"
    disk.free.set()
    await asyncio.gather(first, *later)
    assert disk.calls == 2
    assert numbers(file_of(tmp_path)) == list(range(300)), "in the order of the calls"
    file.close()
    file.close()


def file_of(folder: Path) -> Path:
    return folder / "x.jsonl"


async def test_closing_writes_what_is_queued_also_for_tasks_that_were_cancelled(tmp_path: Path, disk: SlowDisk) -> None:
    file = GroupCommit(file_of(tmp_path))
    disk.free.clear()

    async def record(number: int) -> None:
        await asyncio.wrap_future(file.append(lambda: {"n": number}))

    tasks = [asyncio.create_task(record(0))]
    await fsyncs(disk, 1)
    tasks += [asyncio.create_task(record(number)) for number in range(1, 5)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended)
    disk.free.set()
    file.close()
    assert numbers(file_of(tmp_path)) == list(range(5))
    with pytest.raises(RuntimeError):
        file.append(lambda: {"n": 9})


async def test_a_record_that_cannot_be_written_fails_alone(tmp_path: Path, disk: SlowDisk) -> None:
    file = GroupCommit(file_of(tmp_path))
    disk.free.clear()
    futures = [asyncio.wrap_future(file.append(lambda: {"n": 0}))]
    await fsyncs(disk, 1)
    values = (1, float("nan"), 3)
    futures += [asyncio.wrap_future(file.append(lambda value=value: {"n": value})) for value in values]  # type: ignore[misc]
    disk.free.set()
    found = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(one) for one in found] == [type(None), type(None), ValueError, type(None)]
    file.close()
    assert numbers(file_of(tmp_path)) == [0, 1, 3]


async def test_of_a_batch_whose_fsync_fails_nothing_counts_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = GroupCommit(file_of(tmp_path))
    await asyncio.wrap_future(file.append(lambda: {"n": 0}))

    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StorageError, match=r"Cannot write .*x\.jsonl: Input/output error"):
        await asyncio.wrap_future(file.append(lambda: {"n": 1}))
    monkeypatch.undo()
    await asyncio.wrap_future(file.append(lambda: {"n": 2}))
    file.close()
    assert numbers(file_of(tmp_path)) == [0, 2]


def test_of_a_batch_that_the_disk_does_not_take_nothing_counts_and_nothing_is_left(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import asyncio, os, resource, signal, sys, threading
        from pathlib import Path
        from finqa_cli.errors import StorageError
        from finqa_cli.runs.jsonl import GroupCommit
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        begun, free, fsync = threading.Event(), threading.Event(), os.fsync
        def waits(descriptor):
            begun.set()
            free.wait()
            fsync(descriptor)
        os.fsync = waits
        async def main():
            file = GroupCommit(Path(sys.argv[1]))
            add = lambda n: asyncio.wrap_future(file.append(lambda: {"n": n, "fill": "x" * 300}))
            futures = [add(0)]
            await asyncio.to_thread(begun.wait)
            futures += [add(n) for n in range(1, 20)]  # one batch, of which the limit takes half
            free.set()
            found = await asyncio.gather(*futures, return_exceptions=True)
            assert found[0] is None and all(isinstance(one, StorageError) for one in found[1:]), found
            print({one.exit_code for one in found[1:]})
            file.close()
        asyncio.run(main())
        """
    )
    path = file_of(tmp_path)
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "{74}\n"), done.stderr
    assert numbers(path) == [0] and path.read_bytes().endswith(b"\n")


def test_after_kill_9_every_episode_that_counted_is_in_the_file(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from finqa_cli.runs.run_folder import RunFolder
        from finqa_cli.types import Status, Task, Trajectory
        def played(name):
            task = Task(id=name, prompt="What?", split="train", cluster="acme", kind="lookup")
            return Trajectory(id=name, task=task, member=0, seed=7, turns=(), status=Status.SANDBOX_ERROR)
        async def episodes(folder, worker):
            for number in range(1_000_000):
                name = f"{worker}/{number}"
                await asyncio.wrap_future(folder.trajectory(played(name), phase="train", iteration=1))
                print(name, flush=True)
        async def main():
            with RunFolder.create(Path(sys.argv[1]), command="train", settings={}, save_token_ids=False) as folder:
                await asyncio.gather(*(episodes(folder, worker) for worker in range(20)))
        asyncio.run(main())
        """
    )
    run = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", script, str(run)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    counted = [process.stdout.readline().strip() for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    counted += [line.strip() for line in process.stdout if line.endswith("\n")]
    process.wait(PATIENCE_S)
    written = [record["id"] for record in read_jsonl(run / "trajectories.jsonl")]
    assert len(counted) >= 200 and set(counted) <= set(written)
    assert len(written) == len(set(written))
