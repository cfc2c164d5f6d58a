"""Strangers of a real server: what they send is bounded, what they open is closed, and where they come from counts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fixtures.finqa_server import RunningServer, finqa_server
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from benchmarks import server_limits as attacks
from benchmarks.server_processes import peak_mib, reset_peak, resident_mib
from finqa_plugins.environments._openenv.openenv_client import NoFreeSessionError, OpenEnvClient
from finqa_plugins.environments.openenv_finqa.server.server_limits import MAX_BODIES_BYTES, MAX_BODY_BYTES

TIGHT = {
    "FINQA_HEADER_TIMEOUT": "1",
    "FINQA_BODY_TIMEOUT": "1",
    "FINQA_OPENING_TIMEOUT": "3",
    "FINQA_CONNECTIONS_PER_PEER": "64",
    "FINQA_SESSIONS_PER_PEER": "5",
}
HALF_HEAD = b"GET /health HTTP/1.1\r\nHost: "


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with finqa_server(tmp_path_factory.mktemp("tight"), TIGHT) as running:
        yield running


def port_of(server: RunningServer) -> int:
    return server.process.port


def busy() -> float:
    """How many processes share a core of this machine: what takes a tenth of a second takes so many times longer."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def answer(port: int, sent: bytes) -> bytes:
    """All that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(sent)
        received = b""
        with contextlib.suppress(ConnectionResetError):  # not all that was sent was read
            while part := connection.recv(2**16):
                received += part
    return received


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("route", attacks.ROUTES)
def test_a_long_body_is_refused_on_every_route(server: RunningServer, route: str, chunked: bool) -> None:
    for method in attacks.METHODS:
        assert attacks.send_body(port_of(server), method, route, 2 * MAX_BODY_BYTES, chunked=chunked) == 413


def test_the_longest_body_is_read(server: RunningServer) -> None:
    body = b'{"seed":1' + b" " * (MAX_BODY_BYTES - 10) + b"}"
    assert attacks.request(port_of(server), "/reset", attacks.JSON, body)[0] == 200
    assert attacks.request(port_of(server), "/reset", attacks.JSON, body + b" ")[0] == 413


def test_the_memory_of_long_bodies_is_bounded(server: RunningServer) -> None:
    reset_peak(server.process.pid)
    before = resident_mib(server.process.pid)
    for chunked in (False, True):
        assert attacks.send_body(port_of(server), "POST", "/mcp", 64 * 2**20, chunked=chunked) == 413
    assert peak_mib(server.process.pid) - before <= 16


@pytest.mark.slow
def test_400_mib_to_routes_and_methods(server: RunningServer) -> None:
    reset_peak(server.process.pid)
    before = resident_mib(server.process.pid)
    routes, methods = ("/reset", "/mcp", "/health", "/nowhere"), ("GET", "POST", "PUT")
    with attacks.HealthProbe(port_of(server)) as asked:
        statuses = attacks.long_bodies(port_of(server), 400 * 2**20, routes, methods)
    assert statuses == {413: 2 * len(routes) * len(methods)}
    assert peak_mib(server.process.pid) - before <= 16
    assert asked.failed[port_of(server)] == 0
    assert asked.worst_ms[port_of(server)] <= 100 * busy()


@pytest.mark.parametrize(
    "value", ["[" + "1," * 200_000 + "1]", '"' + "x" * 500_000 + '"', '{"a":' * 50 + "1" + "}" * 50]
)
@pytest.mark.parametrize("field", ["question_id", "split", "seed", "episode_id"])
async def test_no_echo_of_a_long_value_is_long(server: RunningServer, field: str, value: str) -> None:
    body = f'{{"{field}":{value}}}'.encode()
    status, reply = await asyncio.to_thread(attacks.request, port_of(server), "/reset", attacks.JSON, body)
    assert 400 <= status < 500 and len(reply) < 1000
    async with connect(f"ws://127.0.0.1:{port_of(server)}/ws") as wire:
        await wire.send(f'{{"type":"reset","data":{{"{field}":{value}}}}}')
        frame = await wire.recv()
        assert json.loads(frame)["type"] == "error" and len(frame) < 3000


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (HALF_HEAD, b"408"),
        (
            b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
            b"408",
        ),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", b"408"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000, b"431"),
        (b"GET /" + b"x" * 200_000, b"431"),
    ],
)
def test_what_is_not_here_in_full_is_closed_in_time(tight: RunningServer, sent: bytes, status: bytes) -> None:
    began = time.monotonic()
    received = answer(port_of(tight), sent)
    assert received.partition(b" ")[2][:3] == status
    assert time.monotonic() - began < 15


def test_a_head_that_drips_is_closed_too(tight: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", port_of(tight)), timeout=0.1) as connection:
        received, began = b"", time.monotonic()
        connection.sendall(HALF_HEAD)
        while not received and time.monotonic() - began < 15:
            try:
                connection.sendall(b"x")
                received = connection.recv(100)
            except TimeoutError:
                continue
            except ConnectionError:
                return
    assert received.startswith(b"HTTP/1.1 408")


def test_a_kept_connection_serves_many_requests_and_then_has_to_make_up_its_mind(tight: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", port_of(tight)), timeout=30) as connection:
        for _ in range(3):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            reply = b""
            while b"healthy" not in reply:  # head and body may come one by one
                part = connection.recv(2**16)
                assert part, reply
                reply += part
            time.sleep(0.4)  # shorter than the timeout, longer in all
        connection.sendall(HALF_HEAD)
        assert connection.recv(2**16).startswith(b"HTTP/1.1 408")
        assert connection.recv(1) == b""


def test_half_open_connections_are_closed_by_their_timeouts(server: RunningServer, tight: RunningServer) -> None:
    closed, _ = attacks.half_open(port_of(tight), 60, 15.0)
    assert closed == 60
    closed, _ = attacks.half_open(port_of(server), 60, 1.0)  # where they are still in time
    assert closed == 0


def test_more_of_them_than_a_peer_may_have_keep_nobody_out(tight: RunningServer) -> None:
    halves = [socket.create_connection(("127.0.0.1", port_of(tight)), timeout=30) for _ in range(200)]
    for half in halves:
        half.sendall(HALF_HEAD)
    assert attacks.health_ms(port_of(tight)) < 5000
    for half in halves:
        half.close()


@pytest.mark.slow
def test_6000_half_open_connections(tmp_path: Path) -> None:
    if attacks.raise_file_limit() < 6500:
        pytest.skip("this process may not have 6,500 open files")
    timeouts = {"FINQA_HEADER_TIMEOUT": "5", "FINQA_BODY_TIMEOUT": "5"}
    with finqa_server(tmp_path, timeouts) as attacked:
        with attacks.HealthProbe(port_of(attacked)) as asked:
            closed, _ = attacks.half_open(port_of(attacked), 6000, 60.0)
        assert closed == 6000
        assert asked.failed[port_of(attacked)] == 0
        assert attacked.log.read_text() == ""


@pytest.mark.parametrize("attempt", attacks.FOREIGN, ids=lambda attempt: attempt.name)
def test_other_sites_do_not_play(server: RunningServer, attempt: attacks.Attempt) -> None:
    assert not attacks.plays(port_of(server), attempt)


@pytest.mark.parametrize("headers", [{}, {"Origin": "http://localhost:3000"}, {"Origin": "https://127.0.0.1"}])
def test_the_same_requests_from_here_do_play(server: RunningServer, headers: dict[str, str]) -> None:
    assert attacks.plays(port_of(server), attacks.Attempt("ws", "/ws", headers, upgrade=True))
    assert attacks.plays(port_of(server), attacks.Attempt("mcp", "/mcp", {**headers, **attacks.JSON}))


@pytest.mark.parametrize("path", ["/reset", "/step", "/mcp"])
async def test_what_changes_state_is_declared_as_json(server: RunningServer, path: str) -> None:
    async with httpx.AsyncClient(base_url=server.url()) as http:
        for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "text/json"):
            reply = await http.post(path, content=b"{}", headers={"Content-Type": kind})
            assert (reply.status_code, reply.json()["detail"]) == (415, "The Content-Type must be application/json.")
        assert (await http.post(path, content=b"{}")).status_code == 415
        reply = await http.post(path, content=b"{}", headers={"Content-Type": "application/json; charset=utf-8"})
        assert reply.status_code in (200, 422)


async def test_requests_without_one_host_are_refused(server: RunningServer) -> None:
    for lines in (b"", b"Host: localhost\r\nHost: localhost\r\n", b"Host: evil.example\r\n"):
        head = b"GET /metadata HTTP/1.1\r\n" + lines + b"Connection: close\r\n\r\n"
        assert (await asyncio.to_thread(answer, port_of(server), head)).startswith(b"HTTP/1.1 403")
    named = b"GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert (await asyncio.to_thread(answer, port_of(server), named)).startswith(b"HTTP/1.1 200"), "says nothing"


def honest_plays(server: RunningServer) -> bool:
    return asyncio.run(attacks.honest_plays(port_of(server)))


@pytest.mark.parametrize("count", [60, pytest.param(4000, marks=pytest.mark.slow)])
def test_creates_of_other_sites_make_no_session(tight: RunningServer, count: int) -> None:
    assert attacks.cross_site_creates(port_of(tight), count) == 0
    assert honest_plays(tight)


def test_sessions_of_one_peer_leave_others_theirs(tight: RunningServer) -> None:
    port = port_of(tight)
    assert attacks.creates_of_peer(port, 8, "127.0.0.2") == 5
    assert honest_plays(tight)
    session = json.loads(
        attacks.request(port, "/mcp", attacks.JSON, json.dumps(attacks.CREATE).encode(), "127.0.0.3")[1]
    )
    assert attacks.creates_of_peer(port, 8, "127.0.0.3") == 4
    close = {**attacks.CREATE, "method": "openenv/session/close", "params": session["result"]}
    attacks.request(port, "/mcp", attacks.JSON, json.dumps(close).encode(), "127.0.0.3")
    assert attacks.creates_of_peer(port, 8, "127.0.0.3") == 1, "a session that was closed is free again"


async def test_a_peer_with_all_its_sessions_is_told_so_and_gets_one_when_one_ends(tight: RunningServer) -> None:
    clients = [OpenEnvClient(tight.url()) for _ in range(6)]
    try:
        for client in clients:
            await client.connect()
        for client in clients[:5]:
            await client.reset()
        with pytest.raises(NoFreeSessionError, match="This peer has 5 sessions, as many as it may have"):
            await clients[5].reset()
        await clients[0].close()
        for attempt in range(100):
            last = OpenEnvClient(tight.url())
            clients.append(last)
            await last.connect()
            try:
                await last.reset()
                break
            except NoFreeSessionError:  # the server has not seen yet that the socket is closed
                assert attempt < 99
                await asyncio.sleep(0.1)
    finally:
        for client in clients:
            await client.close()


async def test_websockets_without_a_frame_take_no_session_and_are_closed(tight: RunningServer) -> None:
    url = f"ws://127.0.0.1:{port_of(tight)}/ws"
    idle = [await connect(url) for _ in range(20)]  # four times as many as the peer may have sessions
    assert await attacks.honest_plays(port_of(tight))
    for wire in idle:
        with pytest.raises(ConnectionClosed) as caught:
            await asyncio.wait_for(wire.recv(), 30)
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1008, "no frame within 3 s")


async def test_a_peer_with_all_its_connections_gets_429(tight: RunningServer) -> None:
    url = f"ws://127.0.0.1:{port_of(tight)}/ws"
    opened = [await connect(url) for _ in range(64)]
    with pytest.raises(InvalidStatus) as caught:
        await connect(url)
    assert caught.value.response.status_code == 429
    for wire in opened:
        await wire.close()


def test_halves_of_frames_are_bounded_in_all(server: RunningServer) -> None:
    reset_peak(server.process.pid)
    before = resident_mib(server.process.pid)
    with attacks.open_websockets(port_of(server), 150, attacks.half_frame(2**20)) as accepted:
        assert accepted == 150
        assert honest_plays(server)
    grown = peak_mib(server.process.pid) - before
    assert grown < 3.5 * MAX_BODIES_BYTES / 2**20, "150 MiB were sent"


def test_nothing_of_it_is_in_the_log(tight: RunningServer) -> None:
    assert tight.log.read_text() == ""
