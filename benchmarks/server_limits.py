"""The FinQA server against strangers: long bodies, half-open connections, other sites, and sessions that they make.

    python -m benchmarks.server_limits                       # 400 MiB, 6,000 connections, 4,000 creates
    python -m benchmarks.server_limits --mib 40 --connections 600 --creates 400

Two servers run: one is attacked, and the other tells what this machine itself adds to the time of `/health`. A process
of its own asks both all the time. One server has the limits of a sandbox's server, the other those of a server for
strangers. All traffic stays on loopback, where 127.0.0.2 plays another peer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import platform
import resource
import select
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.environment_data import benchmark_data
from benchmarks.server_processes import peak_mib, reset_peak, resident_mib
from finqa_cli.contracts import EnvironmentContext
from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots
from finqa_plugins.environments._openenv.openenv_client import OpenEnvClient
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.sandboxes.local.server_process import ServerProcess

ROUTES = ("/reset", "/step", "/mcp", "/state", "/health", "/metadata", "/schema", "/openapi.json", "/ws", "/nowhere")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
BLOCK = 2**18
PROBE_PAUSE_S = 0.01
LOOPBACK = "127.0.0.1"
EVIL = "http://evil.example"
CREATE = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create", "params": {}}
JSON = {"Content-Type": "application/json"}
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request that a page of another site can make, or that comes under another name."""

    name: str
    path: str
    headers: Mapping[str, str]
    upgrade: bool = False


FOREIGN = (
    Attempt("Origin of another site, /ws", "/ws", {"Origin": EVIL}, upgrade=True),
    Attempt("Origin null, /ws", "/ws", {"Origin": "null"}, upgrade=True),
    Attempt("Host of another name, /ws", "/ws", {"Host": "rebind.evil.example"}, upgrade=True),
    Attempt("Origin of another site, websocket of /mcp", "/mcp", {"Origin": EVIL}, upgrade=True),
    Attempt("Origin of another site, /mcp", "/mcp", {"Origin": EVIL, **JSON}),
    Attempt("Host of another name, /mcp", "/mcp", {"Host": "rebind.evil.example", **JSON}),
    Attempt("text/plain, /mcp", "/mcp", {"Content-Type": "text/plain"}),
    Attempt("a form, /mcp", "/mcp", {"Content-Type": "application/x-www-form-urlencoded"}),
)


class HealthProbe:
    """Asks servers for `/health` from its own process, as the attacking one has no time to measure.

    `worst_ms` and `failed` have figures by port once the block is left.
    """

    def __init__(self, *ports: int) -> None:
        self._ports = ports
        self.worst_ms: dict[int, float] = {}
        self.failed: dict[int, int] = {}

    def __enter__(self) -> HealthProbe:
        command = [sys.executable, "-m", "benchmarks.server_limits", "--probe", *map(str, self._ports)]
        folder = Path(__file__).parents[1]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, env=_with_path(folder)
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"asking\n", "the probe did not start"
        return self

    def __exit__(self, *_: object) -> None:
        told = json.loads(self._process.communicate(timeout=60)[0])
        for port in self._ports:
            latencies = told[str(port)]["ms"]
            self.worst_ms[port] = max(latencies, default=float("inf"))
            self.failed[port] = told[str(port)]["failed"]


def probe(ports: Sequence[int]) -> None:
    """Ask each port in turn until standard input ends; print the milliseconds of all answers."""
    found: dict[int, dict[str, Any]] = {port: {"ms": [], "failed": 0} for port in ports}
    for port in ports:
        health_ms(port)  # the first answer of a server loads what it needs
    print("asking", flush=True)
    while not select.select([sys.stdin], [], [], PROBE_PAUSE_S)[0]:
        for port in ports:
            try:
                found[port]["ms"].append(health_ms(port))
            except OSError:
                found[port]["failed"] += 1
    print(json.dumps(found))


def health_ms(port: int) -> float:
    """Milliseconds of one `/health` on a fresh connection.

    Raises:
        OSError: It is not answered with 200 within 30 s.
    """
    began = time.perf_counter()
    with socket.create_connection((LOOPBACK, port), timeout=30) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        if status_of(connection) != 200:
            raise OSError("not healthy")
    return (time.perf_counter() - began) * 1000


def status_of(connection: socket.socket) -> int:
    """Status of the answer on a connection; 0 where it ends without one."""
    answer = b""
    with contextlib.suppress(OSError):
        while b"\r\n" not in answer and (part := connection.recv(4096)):
            answer += part
    parts = answer.split(b" ", 2)
    return int(parts[1]) if len(parts) > 1 else 0


def send_body(port: int, method: str, route: str, size: int, *, chunked: bool) -> int:
    """Send a body of `size` bytes to its end, or until the server ends it, and return the status of the answer."""
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    head = f"{method} {route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{length}\r\n\r\n"
    block = b"1" * BLOCK
    part = b"%x\r\n%s\r\n" % (BLOCK, block) if chunked else block
    with socket.create_connection((LOOPBACK, port), timeout=60) as connection:
        connection.sendall(head.encode())
        with contextlib.suppress(OSError):  # the answer may be here although the server has closed the connection
            for _ in range(size // BLOCK):
                connection.sendall(part)
            connection.sendall(b"0\r\n\r\n" if chunked else b"")
        return status_of(connection)


def long_bodies(port: int, size: int, routes: Sequence[str] = ROUTES, methods: Sequence[str] = METHODS) -> Counter[int]:
    """Send a long body to each route by each method, plain and chunked; return how often which status came back."""
    return Counter(
        send_body(port, method, route, size, chunked=chunked)
        for route in routes
        for method in methods
        for chunked in (False, True)
    )


HALVES = (
    b"",
    b"GET /health HTT",
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
)


def half_open(port: int, count: int, within_s: float, halves: Sequence[bytes] = HALVES) -> tuple[int, float]:
    """Open connections that send half of a request and wait.

    Returns:
        How many of them the server has closed within `within_s` of the last opening, and the seconds until the last of
        these was closed.
    """
    selector = selectors.DefaultSelector()
    connections = []
    try:
        for place in range(count):
            connection = socket.create_connection((LOOPBACK, port), timeout=30)
            connection.sendall(halves[place % len(halves)])
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
            connections.append(connection)
        began, last = time.monotonic(), 0.0
        open_now = count
        while open_now and time.monotonic() - began < within_s:
            for key, _ in selector.select(timeout=0.5):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if _ended(connection):
                    selector.unregister(connection)
                    open_now, last = open_now - 1, time.monotonic() - began
        return count - open_now, last
    finally:
        for connection in connections:
            connection.close()
        selector.close()


def _ended(connection: socket.socket) -> bool:
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def request(port: int, path: str, headers: Mapping[str, str], body: bytes, source: str = LOOPBACK) -> tuple[int, bytes]:
    """POST once from an address of loopback; return status and body."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=30, source_address=(source, 0))
    try:
        connection.request("POST", path, body=body, headers=dict(headers))
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def upgrade(port: int, path: str, headers: Mapping[str, str]) -> tuple[int, socket.socket]:
    """Ask for a websocket; return the status and the connection, which the caller closes."""
    lines = {"Host": f"localhost:{port}", **UPGRADE, **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    connection = socket.create_connection((LOOPBACK, port), timeout=30)
    connection.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
    return status_of(connection), connection


def plays(port: int, attempt: Attempt) -> bool:
    """Whether an attempt opens a websocket or makes a session."""
    if attempt.upgrade:
        status, connection = upgrade(port, attempt.path, attempt.headers)
        connection.close()
        return status == 101
    return b"session_id" in request(port, attempt.path, attempt.headers, json.dumps(CREATE).encode())[1]


def cross_site_creates(port: int, count: int) -> int:
    """Ask for sessions as a page of another site can, with and without an `Origin`; return how many were made."""
    made = 0
    for place in range(count):
        origin = {"Origin": EVIL} if place % 2 else {}
        _, body = request(port, "/mcp", {"Content-Type": "text/plain", **origin}, json.dumps(CREATE).encode())
        made += b"session_id" in body
    return made


def creates_of_peer(port: int, count: int, source: str) -> int:
    """Ask for sessions as a program of another machine can; return how many were made."""
    body = json.dumps(CREATE).encode()
    return sum(b"session_id" in request(port, "/mcp", JSON, body, source)[1] for _ in range(count))


@contextlib.contextmanager
def open_websockets(port: int, count: int, sent: bytes = b"") -> Iterator[int]:
    """Open websockets and send the same bytes on each; yields how many were accepted."""
    opened = [upgrade(port, "/ws", {}) for _ in range(count)]
    try:
        for status, connection in opened:
            if status == 101:
                with contextlib.suppress(OSError):  # closed already: it would take too much
                    connection.sendall(sent)
        yield sum(status == 101 for status, _ in opened)
    finally:
        for _, connection in opened:
            connection.close()


def half_frame(size: int) -> bytes:
    """A masked text frame of `size` bytes without its last kilobyte."""
    return b"\x81\xff" + size.to_bytes(8, "big") + bytes(4) + b"1" * (size - 1024)


async def honest_plays(port: int) -> bool:
    """Whether a client that comes now gets a session and a question."""
    client = OpenEnvClient(f"http://{LOOPBACK}:{port}")
    await client.connect()
    try:
        await client.reset()
        return bool((await client.state())["question_id"])
    finally:
        await client.close()


def raise_file_limit() -> int:
    """Allow this process as many open files as it may have, and return how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _with_path(folder: Path) -> dict[str, str]:
    paths = [str(folder), str(folder / "plugins"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@dataclass(frozen=True, slots=True)
class Server:
    """A server under attack."""

    port: int
    pid: int


def attack(server: Server, control: Server, what: str, run: Any) -> None:
    """Run an attack, and print what it says beside memory and `/health`."""
    time.sleep(1.0)
    reset_peak(server.pid)
    before = resident_mib(server.pid)
    with HealthProbe(server.port, control.port) as asked:
        said = run()
    grown = peak_mib(server.pid) - before
    worst, beside = asked.worst_ms[server.port], asked.worst_ms[control.port]
    failed = f", {asked.failed[server.port]} failed" if asked.failed[server.port] else ""
    print(f"| {what} | {said} | {grown:+.1f} | {worst:.0f}{failed} ({beside:.0f}) |", flush=True)


def measure(sandboxed: Server, strangers: Server, arguments: argparse.Namespace) -> None:
    """Print a row for each attack."""
    print("| attack | result | memory at its peak, MiB | worst /health, ms (of an idle server beside it) |")
    print("| --- | --- | --- | --- |")
    size = arguments.mib * 2**20

    def bodies() -> str:
        statuses = long_bodies(strangers.port, size)
        return ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))

    def halves() -> str:
        closed, last = half_open(sandboxed.port, arguments.connections, 60.0)
        return f"{closed} of {arguments.connections} closed, the last after {last:.1f} s"

    def openers() -> str:
        with open_websockets(sandboxed.port, 4095) as accepted:
            return f"{accepted} accepted; an honest client plays: {_yes(asyncio.run(honest_plays(sandboxed.port)))}"

    def evicted() -> str:
        closed, _ = half_open(strangers.port, arguments.connections, 60.0)
        return f"{closed} of {arguments.connections} closed"

    def foreign() -> str:
        return f"{sum(plays(strangers.port, each) for each in FOREIGN)} of {len(FOREIGN)} play"

    def creates() -> str:
        made = cross_site_creates(strangers.port, arguments.creates)
        return f"{made} made; an honest client plays: {_yes(asyncio.run(honest_plays(strangers.port)))}"

    def one_peer() -> str:
        made = creates_of_peer(strangers.port, arguments.creates, "127.0.0.2")
        return f"{made} made; a client of another peer plays: {_yes(asyncio.run(honest_plays(strangers.port)))}"

    def frames() -> str:
        with open_websockets(strangers.port, 200, half_frame(2**20)) as accepted:
            return f"{accepted} accepted; an honest client plays: {_yes(asyncio.run(honest_plays(strangers.port)))}"

    def long_value() -> str:
        body = b'{"question_id":[' + b"1," * (2**19 - 16) + b"1]}"
        return f"status {request(strangers.port, '/reset', JSON, body)[0]}"

    name = f"{arguments.mib} MiB to {len(ROUTES)} routes by {len(METHODS)} methods, plain and chunked"
    attack(strangers, sandboxed, name, bodies)
    attack(sandboxed, strangers, f"{arguments.connections} half-open connections", halves)
    attack(strangers, sandboxed, f"{arguments.connections} half-open connections, 2,048 a peer", evicted)
    attack(sandboxed, strangers, "4,095 websockets without a frame", openers)
    attack(strangers, sandboxed, "foreign Origin, Host or Content-Type", foreign)
    attack(strangers, sandboxed, f"{arguments.creates} sessions by another site", creates)
    attack(strangers, sandboxed, f"{arguments.creates} sessions by one peer", one_peer)
    attack(strangers, sandboxed, "200 websockets with half a frame of 1 MiB", frames)
    attack(strangers, sandboxed, "question_id with half a million numbers", long_value)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def main() -> None:
    """Read the flags and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=400, help="size of each body")
    parser.add_argument("--connections", type=int, default=6000, help="half-open connections")
    parser.add_argument("--creates", type=int, default=4000, help="sessions that others ask for")
    parser.add_argument("--probe", type=int, nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.probe:
        probe(arguments.probe)
        return
    raise_file_limit()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{platform.platform()}, {os.cpu_count()} cores, load {load}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(prefix="finqa-benchmark-") as folder:
        asyncio.run(_with_servers(Path(folder), arguments))


async def _with_servers(folder: Path, arguments: argparse.Namespace) -> None:
    snapshot = LocalSnapshots(folder).build("benchmark", benchmark_data())[0]
    spec = FinQAEnvironment(None, EnvironmentContext(snapshot=snapshot)).sandbox_spec()
    assert spec is not None, "no url is set"
    open_to_all = {name: value for name, value in spec.environment.items() if not name.endswith("_PER_PEER")}
    processes = [
        ServerProcess(spec, folder / "sandboxed.log"),
        ServerProcess(replace(spec, environment=open_to_all), folder / "strangers.log"),
    ]
    try:
        for process in processes:
            await process.wait_until_healthy(60.0)
        sandboxed, strangers = (Server(process.port, process.pid) for process in processes)
        await asyncio.to_thread(measure, sandboxed, strangers, arguments)
        print(f"\nbytes logged by both servers: {await asyncio.to_thread(_logged, folder)}")
    finally:
        for process in processes:
            await process.stop(3.0)


def _logged(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


if __name__ == "__main__":
    main()
