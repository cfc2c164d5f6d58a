"""The parts of the reliability benchmark can fail: they see what differs, and their faults do what they say."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.reliability import clock
from benchmarks.reliability.chaos import Outcome, figures
from benchmarks.reliability.faulty_connections import FaultyConnections
from benchmarks.reliability.requirements import REQUIREMENTS
from benchmarks.reliability.schedule import KINDS, draw, place_of
from benchmarks.reliability.small_disk import RECORDS, SmallDisk
from benchmarks.reliability.trainings import CLOCK, Difference, compare, read_results

SAME = Difference(lost=0, repeated=0, rewards=0, metrics=(), adapters=())


def write_run(folder: Path, rewards: dict[str, float], *, loss: float = 0.5, weights: bytes = b"weights") -> Path:
    policy = folder / "checkpoints" / "step_1" / "policy"
    policy.mkdir(parents=True)
    (policy / "adapter_model.safetensors").write_bytes(weights)
    records = [{"id": id_, "reward": reward, "status": "completed"} for id_, reward in rewards.items()]
    (folder / "trajectories.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    line = {"iteration": 1, "loss": loss, "timing": {"s": time.monotonic()}, "recoveries": len(rewards), "retries": 1}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return folder


def test_a_run_is_compared_in_everything_but_times_and_recoveries(tmp_path: Path) -> None:
    expected = read_results(write_run(tmp_path / "a", {"x": 1.0, "y": 0.0}))
    assert compare(read_results(write_run(tmp_path / "b", {"y": 0.0, "x": 1.0})), expected) == SAME
    other = compare(read_results(write_run(tmp_path / "c", {"x": 0.0, "z": 1.0}, loss=0.4, weights=b"w")), expected)
    assert (other.lost, other.repeated, other.rewards) == (1, 1, 1)
    assert other.metrics == ("line 0 loss: 0.4 for 0.5",) and other.adapters == ("step_1",)


def test_an_episode_that_ended_in_a_fault_or_came_twice_is_seen(tmp_path: Path) -> None:
    expected = read_results(write_run(tmp_path / "a", {"x": 1.0, "y": 0.0}))
    run = write_run(tmp_path / "b", {"x": 1.0})
    fault = {"id": "y", "reward": None, "status": "sandbox_error"}
    with (run / "trajectories.jsonl").open("a") as file:
        file.write(2 * (json.dumps(fault) + "\n"))
    found = compare(read_results(run), expected)
    assert (found.lost, found.repeated, found.rewards) == (1, 1, 0)


def test_a_seed_that_leaves_something_or_does_not_finish_fails() -> None:
    def failing(**facts: object) -> bool:
        outcome = Outcome(seed=0, place="local", strikes=["kill server"], **{"difference": SAME, **facts})  # type: ignore[arg-type]
        assert outcome.passed is all(figure.passed for figure in figures([outcome]))
        return not outcome.passed

    assert not failing()
    assert failing(difference=None) and failing(processes=1) and failing(sandboxes=1) and failing(complaints=["x"])
    assert failing(difference=Difference(lost=0, repeated=0, rewards=0, metrics=("loss",), adapters=()))


def test_schedules_repeat_themselves_and_have_every_kind() -> None:
    drawn = {seed: draw(seed, place_of(seed)) for seed in range(50)}
    assert drawn == {seed: draw(seed, place_of(seed)) for seed in range(50)}
    for place, kinds in KINDS.items():
        found = {strike.kind for seed in drawn if place_of(seed) == place for strike in drawn[seed]}
        assert found == set(kinds)
    assert all([s.at for s in strikes] == sorted(s.at for s in strikes) for strikes in drawn.values())
    assert [strike.kind for strike in draw(3, "local", kinds=("kill trainer",), number=1)] == ["kill trainer"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount a file system")
def test_a_small_disk_is_full_and_has_room_again(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk") as disk:
        if not disk.mounted:
            pytest.skip("this root may not mount")
        disk.fill(os.getpid(), tmp_path, 8192)
        with pytest.raises(OSError, match="No space") as raised, (disk.folder / "file").open("wb") as file:
            file.write(bytes(100_000))
        assert raised.value.errno == errno.ENOSPC
        disk.free()
        (disk.folder / "file").write_bytes(bytes(100_000))
        disk.allow_writing(False)
        with pytest.raises(OSError, match="Read-only"):
            (disk.folder / "other").write_bytes(b"")
        disk.allow_writing(True)
    assert list((tmp_path / "disk").iterdir()) == []


WRITER = """
import sys
with open(sys.argv[1], "ab", buffering=0) as file:
    for line in sys.stdin:
        try:
            print(file.write(b"x" * 100), flush=True)
        except OSError as error:
            print(error.strerror, flush=True)
"""


def test_without_a_file_system_of_its_own_the_files_of_a_process_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with SmallDisk(tmp_path / "disk") as disk:
        assert not disk.mounted
        command = [sys.executable, "-c", WRITER, str(disk.folder / RECORDS)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdin is not None and writer.stdout is not None

            def write() -> str:
                assert writer.stdin is not None and writer.stdout is not None
                writer.stdin.write("\n")
                writer.stdin.flush()
                return writer.stdout.readline().strip()

            assert write() == "100"
            disk.fill(writer.pid, disk.folder, 150)
            assert [write() for _ in range(3)] == ["100", "50", "File too large"]
            disk.free()
            assert write() == "100"


def echo(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, contextlib.suppress(ConnectionResetError):
            while data := connection.recv(1024):
                connection.sendall(data)


def test_connections_are_forwarded_silenced_slowed_and_cut() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = threading.Thread(target=echo, args=(listener,), daemon=True)
    server.start()
    with listener, FaultyConnections(listener.getsockname()[1]) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port), timeout=30)
        client.sendall(b"one")
        assert client.recv(3) == b"one"
        proxy.silence()
        client.settimeout(0.3)
        client.sendall(b"two")
        with pytest.raises(TimeoutError):
            client.recv(3)
        client.settimeout(30)
        proxy.heal()
        assert client.recv(3) == b"two"
        proxy.delay_s = 0.2
        began = time.monotonic()
        client.sendall(b"six")
        assert client.recv(3) == b"six" and time.monotonic() - began > 0.2
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            client.sendall(b"end")
            while client.recv(3):
                pass
        client.close()
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        server.join(30)
        assert not server.is_alive()


def test_the_clock_of_a_process_can_be_stepped(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    file.write_text("-3600")
    environment = {**os.environ, "PYTHONPATH": str(Path(clock.__file__).parent), CLOCK: str(file)}
    code = "import time; print(time.time(), time.time_ns(), time.monotonic())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    seconds, nanoseconds, monotonic = map(float, done.stdout.split())
    assert abs(seconds + 3600 - time.time()) < 60 and abs(nanoseconds / 1e9 - seconds) < 1
    assert abs(monotonic - time.monotonic()) < 60


def test_every_promise_is_measured_or_says_why_not() -> None:
    assert [r.name for r in REQUIREMENTS] == ["chaos", *(f"R{number}" for number in range(1, 31))]
    assert all(r.injection and r.bar and (r.measure or r.reason) for r in REQUIREMENTS)
