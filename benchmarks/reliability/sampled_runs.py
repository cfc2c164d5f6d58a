"""Runs that play only: killed, out of disk, opened twice, with a clock that jumps back and a slow disk."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, at_most, exactly, note
from benchmarks.reliability import clock
from benchmarks.reliability.places import wait_until
from benchmarks.reliability.scale import Scale
from benchmarks.reliability.small_disk import SmallDisk
from benchmarks.reliability.trainings import CLOCK
from finqa_cli.runs.jsonl import GroupCommit

SAMPLE = ("sample", "scripted", "--limit=16", "-k", "4", "--sandbox=local", "--sandboxes=4", "--quiet")
EPISODES = 64
HANG_S = 120.0
SLOW_FSYNC_S = 0.5
SLOW_RECORDS = 40
LAG_S = 0.1


class Sampling:
    """One run folder of `finqa sample` with the scripted expert."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.run = folder / "run"
        self.records = self.run / "trajectories.jsonl"
        self.clock = folder / "clock"
        self._folder = folder
        paths = (str(Path(clock.__file__).parent), os.environ.get("PYTHONPATH", ""))
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FINQA_")},
            "FINQA_HOME": str(home),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            CLOCK: str(self.clock),
        }

    def start(self, *, resume: bool = False) -> subprocess.Popen[str]:
        """Starts or resumes it."""
        arguments = ("sample", f"--resume={self.run}", "--quiet") if resume else (*SAMPLE, f"--run-dir={self.run}")
        return subprocess.Popen(
            [sys.executable, "-m", "finqa_cli", *arguments],
            env=self._environment,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Returns the exit status and stderr."""
        try:
            _, said = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
            process.wait()
        return process.returncode, said

    def lines(self) -> list[bytes]:
        """Complete records."""
        try:
            data = self.records.read_bytes()
        except OSError:
            return []
        return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]

    def wait_for(self, records: int, process: subprocess.Popen[str]) -> bool:
        """Waits for so many records; False when the process ended before."""
        wait_until(lambda: len(self.lines()) >= records or process.poll() is not None, HANG_S)
        return process.poll() is None


def kill_sampling(scale: Scale, folder: Path) -> list[Figure]:
    """R10: SIGKILL at a random number of finished episodes, then the same run resumed."""
    rng = random.Random(f"sampling {scale.seed}")
    lost = repeated = missing = killed = 0
    complaints: list[str] = []
    for number in range(scale.sampling_kills):
        (folder / str(number)).mkdir()
        sampling = Sampling(folder / str(number), folder / "home")
        process = sampling.start()
        reached = rng.randrange(EPISODES)
        if sampling.wait_for(reached, process):
            time.sleep(rng.uniform(0.0, 0.1 if reached else 3.0))
        killed += process.poll() is None
        process.kill()
        sampling.finish(process)
        before = sampling.lines()
        begun = (sampling.run / "run.json").exists()
        status, said = sampling.finish(sampling.start(resume=begun))
        if status or "Traceback" in said:
            complaints.append(f"exit {status}: {said[-500:]}")
        after = sampling.lines()
        ids = [json.loads(line)["id"] for line in after]
        lost += len(set(before) - set(after))
        repeated += len(ids) - len(set(ids))
        missing += EPISODES - len(set(ids))
    return [
        exactly("finished episodes lost or played again", lost, 0, f"{killed} of {scale.sampling_kills} runs killed"),
        exactly("episodes recorded twice", repeated, 0),
        exactly("episodes missing after the resume", missing, 0, f"of {EPISODES} a run"),
        exactly("runs that were not resumed", len(complaints), 0, "; ".join(complaints)[:300]),
    ]


def fill_disks(scale: Scale, folder: Path) -> list[Figure]:
    """R11: the disk gets full while episodes are played, or is read-only; then the run is resumed."""
    rng = random.Random(f"disks {scale.seed}")
    wrong: list[str] = []
    lost = 0
    with SmallDisk(folder / "full") as disk:
        sampling = Sampling(disk.folder, folder / "home")
        process = sampling.start()
        sampling.wait_for(8, process)
        disk.fill(process.pid, sampling.run, rng.randrange(20_000))
        wrong += _is_storage_error(sampling, *sampling.finish(process))
        before = sampling.lines()
        torn = not sampling.records.read_bytes().endswith(b"\n")
        disk.free()
        status, said = sampling.finish(sampling.start(resume=True))
        wrong += [f"resumed: exit {status}: {said[-400:]}"] if status else []
        lost += len(set(before) - set(sampling.lines())) + abs(len(sampling.lines()) - EPISODES)
    with SmallDisk(folder / "read-only") as disk:
        if disk.mounted:
            sampling = Sampling(disk.folder, folder / "home")
            disk.allow_writing(False)
            wrong += _is_storage_error(sampling, *sampling.finish(sampling.start()))
            disk.allow_writing(True)
            status, said = sampling.finish(sampling.start())
            wrong += [f"writable again: exit {status}: {said[-400:]}"] if status else []
            lost += abs(len(sampling.lines()) - EPISODES)
        how = "full and read-only tmpfs" if disk.mounted else "limit of file sizes; no read-only folder without root"
    return [
        exactly("runs without exit 74 and the path, or not resumed", len(wrong), 0, "; ".join(wrong) or how),
        exactly("finished episodes lost, or missing in the end", lost, 0),
        note("files with a torn last line", int(torn), "it is dropped on reopening"),
    ]


def _is_storage_error(sampling: Sampling, status: int, said: str) -> list[str]:
    """What is wrong with the end of a run that could not write."""
    right = status == os.EX_IOERR and "Traceback" not in said and str(sampling.run) in said
    return [] if right else [f"exit {status}: {said[-400:]}"]


def share_a_folder(scale: Scale, folder: Path) -> list[Figure]:
    """R25: a second process on a run, a clock that jumps back, a disk whose fsync takes half a second."""
    sampling = Sampling(folder, folder / "home")
    process = sampling.start()
    sampling.wait_for(4, process)
    process.send_signal(signal.SIGSTOP)  # so that it is not over before the second one looks
    try:
        status, said = sampling.finish(sampling.start(resume=True))
    finally:
        process.send_signal(signal.SIGCONT)
    refused = status == os.EX_CONFIG and f"process {process.pid}" in said
    sampling.clock.write_text("-3600", encoding="ascii")
    sampling.finish(process)
    records = [json.loads(line) for line in sampling.lines()]
    lag_s, kept = asyncio.run(_lag(folder / "slow.jsonl"))
    return [
        exactly(
            "second processes that are refused with the pid of the first",
            int(refused),
            1,
            "" if refused else said[-300:],
        ),
        exactly(
            "negative durations after the clock went back an hour", _negative(records), 0, f"{len(records)} records"
        ),
        exactly("episodes played beside that", len(records), EPISODES),
        at_most(
            "longest delay of the event loop beside an fsync of 500 ms, s",
            lag_s,
            LAG_S,
            f"{kept} records written",
            timed=True,
        ),
        exactly("of these records kept", kept, SLOW_RECORDS),
    ]


def _negative(records: list[dict[str, Any]]) -> int:
    def negatives(value: Any, name: str = "") -> Iterator[str]:
        if isinstance(value, dict):
            for key, member in value.items():
                yield from negatives(member, key)
        elif isinstance(value, list):
            for member in value:
                yield from negatives(member, name)
        elif isinstance(value, (int, float)) and value < 0 and (name.endswith(("_s", "_ms")) or name == "seconds"):
            yield name

    return sum(1 for record in records for _ in negatives(record))


async def _lag(path: Path) -> tuple[float, int]:
    """Writes records to a slow disk; returns how late the event loop was at most, and the records in the file."""
    loop, worst = asyncio.get_running_loop(), 0.0
    with _slow_fsync():
        file = await asyncio.to_thread(GroupCommit, path)
        written = [asyncio.wrap_future(file.append(lambda n=n: {"n": n})) for n in range(SLOW_RECORDS)]  # type: ignore[misc]
        everything = asyncio.gather(*written)
        while not everything.done():
            began = loop.time()
            await asyncio.sleep(0.01)
            worst = max(worst, loop.time() - began - 0.01)
        await asyncio.to_thread(file.close)
    return worst, len(await asyncio.to_thread(lambda: path.read_bytes().splitlines()))


@contextmanager
def _slow_fsync() -> Iterator[None]:
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(SLOW_FSYNC_S)
        fsync(descriptor)

    os.fsync = slow  # type: ignore[assignment]
    try:
        yield
    finally:
        os.fsync = fsync
