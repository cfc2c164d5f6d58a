"""Can an agent harm the FinQA environment? Hostile SQL, frames and tool calls in full volume.

    python -m benchmarks.safety [--statements 10000] [--frames 10000] [--calls 10000] [--seed 7]

Runs the SQL attacks and random statements against the query runner, then random websocket frames and tool calls against
a real server. Prints what was written, how long the worst query took, how far memory grew and what the server logged.
Exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from finqa_cli.contracts import EnvironmentContext
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotReader
from finqa_plugins.environments.openenv_finqa.server.sql_execution import QueryRunner
from finqa_plugins.sandboxes.local.server_process import ServerProcess
from tests.fixtures.hostile_frames import QUERY, random_calls, random_frames
from tests.fixtures.hostile_sql import ATTACKS, FILE, TABLE, random_statements
from tests.fixtures.tiny_snapshot import CANARY, write_tiny_snapshot

WORST_S = 1.1
MAX_GROWTH_MIB = 64
LONGEST_REPLY = 16_384
MAX_FRAME = 2**20
EVERYTHING = f'SELECT line_item, "2024", "2023", margin FROM {TABLE} WHERE 1'


@dataclass
class Tally:
    """What happened to one kind of input."""

    kinds: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    worst_s: float = 0.0
    worst: str = ""
    longest_reply: int = 0
    leaks: int = 0

    def add(self, kind: str, seconds: float, reply: str, label: str) -> None:
        """One reply."""
        self.kinds[kind] += 1
        if seconds > self.worst_s:
            self.worst_s, self.worst = seconds, label[:60]
        self.seconds.append(seconds)
        self.longest_reply = max(self.longest_reply, len(reply.encode()))
        self.leaks += CANARY in reply

    def percentile(self, share: float) -> float:
        """Seconds."""
        return sorted(self.seconds)[int(share * (len(self.seconds) - 1))]


def run_statements(runner: QueryRunner, statements: Iterable[tuple[str, str]]) -> Tally:
    """Every (label, query), one after the other, with the seconds of the processor that it takes."""
    tally = Tally()
    for label, query in statements:
        began = time.thread_time()
        reply = runner.run("acme", TABLE, query)
        tally.add("rows" if reply.startswith("[") else "refused", time.thread_time() - began, reply, label)
    return tally


def median_s(runner: QueryRunner) -> float:
    """Of a harmless query."""
    return statistics.median(run_statements(runner, [("", QUERY)] * 2000).seconds)


async def exchange(server: ServerProcess, frames: Iterable[str | bytes]) -> Tally:
    """Sends frames one after the other; connects again after one that closes its socket."""
    tally = Tally()
    socket: ClientConnection | None = None
    for frame in frames:
        if socket is None:
            socket = await connect(f"ws://127.0.0.1:{server.port}/ws", compression=None, ping_interval=None)
        began = time.perf_counter()
        try:
            await socket.send(frame)
            reply = str(await asyncio.wait_for(socket.recv(), 10))
        except ConnectionClosed:
            asked_for = len(frame) > MAX_FRAME or '"close"' in str(frame)
            tally.kinds["closed, as asked" if asked_for else "CLOSED"] += 1
            socket = None
            continue
        seconds = time.perf_counter() - began
        received = json.loads(reply)
        kind = str(received["data"].get("code") or received["type"])
        result = received["data"].get("observation", {}).get("result") or {}
        tally.add(kind, seconds, result.get("data", "") or reply, str(frame))
    if socket is not None:
        await socket.close()
    return tally


def call_frames(seed: int, count: int) -> Iterable[str]:
    """Tool calls, with a new episode every ten."""
    for number, (tool, arguments) in enumerate(random_calls(seed, count)):
        if number % 10 == 0:
            yield json.dumps({"type": "reset", "data": {"question_id": "q1"}})
        data = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
        yield json.dumps({"type": "step", "data": data})


def fingerprint(folder: Path) -> dict[str, str]:
    """sha256 of every file below."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def resident_mib(pid: int | str = "self", name: str = "VmRSS") -> float:
    """Memory of a process; `VmHWM` is its peak."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(float(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(name))


def show(name: str, tally: Tally) -> None:
    """Two lines."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in tally.kinds.most_common())
    print(f"{name}: {sum(tally.kinds.values())} ({kinds})")
    print(
        f"  worst {tally.worst_s:.3f} s ({tally.worst}), p99 {1000 * tally.percentile(0.99):.1f} ms, "
        f"longest reply {tally.longest_reply} bytes, truths in replies {tally.leaks}"
    )


def check_sql(folder: Path, statements: int, seed: int) -> list[str]:
    """Prints the figures of part one; returns the targets that were missed."""
    runner = QueryRunner(SnapshotReader(folder / "snapshot"))
    table, before, median = runner.run("acme", TABLE, EVERYTHING), fingerprint(folder), median_s(runner)
    resident = resident_mib()
    attacks = run_statements(runner, ATTACKS.items())
    random = run_statements(runner, ((query, query) for query in random_statements(seed, statements)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    after = fingerprint(folder)
    writes = sum(before.get(path) != digest for path, digest in after.items() if path in before)
    writes += runner.run("acme", TABLE, EVERYTHING) != table
    files = len(after.keys() ^ before.keys()) + Path("/tmp", FILE).exists()
    show("SQL attacks", attacks)
    show("random statements", random)
    slower = median_s(runner) / median - 1
    print(
        f"writes {writes}, files {files}, memory +{peak - resident:.0f} MiB at its peak, harmless query {slower:+.0%}"
    )
    worst = max(attacks.worst_s, random.worst_s)
    targets = {
        f"worst query {worst:.2f} s": worst <= WORST_S,
        f"memory +{peak - resident:.0f} MiB": peak - resident <= MAX_GROWTH_MIB,
        f"{writes} writes, {files} files": not writes and not files,
        "replies too long": max(attacks.longest_reply, random.longest_reply) <= LONGEST_REPLY,
        "truth told": not attacks.leaks and not random.leaks,
    }
    return [name for name, met in targets.items() if not met]


async def check_server(folder: Path, frames: int, calls: int, seed: int) -> list[str]:
    """Prints the figures of part two; returns the targets that were missed."""
    snapshot = write_tiny_snapshot(folder / "snapshot")
    spec = FinQAEnvironment(None, EnvironmentContext(snapshot=snapshot)).sandbox_spec()
    assert spec is not None
    log = folder / "server.log"
    server = ServerProcess(spec, log)
    try:
        await server.wait_until_healthy(60.0)
        resident = resident_mib(server.pid)
        fuzzed = await exchange(server, random_frames(seed, frames))
        called = await exchange(server, call_frames(seed, calls))
        alive, grown = await server.healthy(), resident_mib(server.pid, "VmHWM") - resident
    finally:
        await server.stop(3.0)
    logged = log.read_text(encoding="utf-8")
    show("frames", fuzzed)
    show("tool calls", called)
    print(f"uncaught exceptions {logged.count('Traceback')}, bytes logged {len(logged)}, server alive: {alive}")
    print(f"memory of the server +{grown:.0f} MiB at its peak")
    targets = {
        "the server died": alive,
        "uncaught exceptions": not logged,
        "a session was ended": not (fuzzed.kinds + called.kinds).keys() & {"CLOSED", "SESSION_ERROR"},
        "replies too long": max(fuzzed.longest_reply, called.longest_reply) <= LONGEST_REPLY,
        "truth told": not fuzzed.leaks and not called.leaks,
        f"server memory +{grown:.0f} MiB": grown <= MAX_GROWTH_MIB,
    }
    return [name for name, met in targets.items() if not met]


def main() -> int:
    """Reads the flags and runs; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("statements", "frames", "calls"):
        parser.add_argument(f"--{name}", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{platform.platform()}, Python {platform.python_version()}, seed {arguments.seed}")
    with tempfile.TemporaryDirectory(prefix="finqa-safety-") as name:
        folder = Path(name)
        os.chdir(folder)  # where a file would be written that an attack names without a folder
        write_tiny_snapshot(folder / "snapshot")
        missed = check_sql(folder, arguments.statements, arguments.seed)
        missed += asyncio.run(check_server(folder, arguments.frames, arguments.calls, arguments.seed))
    print("missed: " + "; ".join(missed) if missed else "all targets met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
