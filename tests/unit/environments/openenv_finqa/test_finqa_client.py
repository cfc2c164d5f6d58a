"""The client against servers that misbehave: no reply is ever taken for another's, and every fault has its type."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.sync.server import ServerConnection as SyncConnection
from websockets.sync.server import serve as sync_serve

from finqa_cli.errors import EnvironmentFault, SandboxError
from finqa_plugins.environments._openenv.openenv_client import OpenEnvClient, RefusedRequestError, websocket_url
from finqa_plugins.environments.openenv_finqa.finqa_tools import TOOLS

Handler = Callable[[ServerConnection], Awaitable[None]]


def observation(text: str) -> str:
    data = {"observation": {"tool_name": "t", "result": {"data": text}, "error": None}, "reward": None, "done": False}
    return json.dumps({"type": "observation", "data": data})


def error(code: str, message: str = "why") -> str:
    return json.dumps({"type": "error", "data": {"code": code, "message": message}})


@asynccontextmanager
async def client_of(handler: Handler, **options: float) -> AsyncIterator[OpenEnvClient]:
    async with serve(handler, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        client = OpenEnvClient(f"http://127.0.0.1:{port}", tools=TOOLS, **options)
        await client.connect()
        try:
            yield client
        finally:
            await client.close()


def replying(text: str) -> Handler:
    async def handler(connection: ServerConnection) -> None:
        async for _ in connection:
            await connection.send(text)

    return handler


async def echo_late(connection: ServerConnection) -> None:
    """Answers each call with its own argument, the first one late."""
    first = True
    async for raw in connection:
        if first:
            await asyncio.sleep(0.3)
        first = False
        await connection.send(observation(json.loads(raw)["data"]["arguments"]["n"]))


async def test_a_late_reply_is_never_read_as_anothers() -> None:
    async with client_of(echo_late, reply_timeout_s=0.1) as client:
        with pytest.raises(SandboxError, match=r"did not reply within 0.1 s"):
            await client.call_tool("t", {"n": "1"})
        await asyncio.sleep(0.3)
        with pytest.raises(SandboxError, match="closed"):
            await client.call_tool("t", {"n": "2"})


async def test_a_cancelled_call_drops_the_socket() -> None:
    async with client_of(echo_late) as client:
        call = asyncio.create_task(client.call_tool("t", {"n": "1"}))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(0.3)
        with pytest.raises(SandboxError, match="closed"):
            await client.call_tool("t", {"n": "2"})


async def test_calls_at_once_are_served_one_after_the_other() -> None:
    async with client_of(echo_late) as client:
        replies = await asyncio.gather(*(client.call_tool("t", {"n": str(number)}) for number in range(20)))
        assert [reply["observation"]["result"]["data"] for reply in replies] == [str(number) for number in range(20)]


async def test_a_call_that_waits_behind_a_lost_one_fails_too() -> None:
    async with client_of(echo_late, reply_timeout_s=0.1) as client:
        outcomes = await asyncio.gather(
            *(client.call_tool("t", {"n": str(number)}) for number in range(3)), return_exceptions=True
        )
        assert all(isinstance(outcome, SandboxError) for outcome in outcomes)


async def test_a_cut_connection_is_a_sandbox_error() -> None:
    async def cut(connection: ServerConnection) -> None:
        await connection.recv()
        connection.transport.abort()

    async with client_of(cut) as client:
        with pytest.raises(SandboxError, match="lost"):
            await client.call_tool("t", {})


async def test_an_unsolicited_capacity_frame_is_a_sandbox_error() -> None:
    async def full(connection: ServerConnection) -> None:
        await connection.send(error("CAPACITY_REACHED", "1 of 1 sessions"))
        await connection.close()

    async with client_of(full) as client:
        await asyncio.sleep(0.05)
        with pytest.raises(SandboxError):
            await client.reset(question_id="q")


@pytest.mark.parametrize("code", ["CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"])
async def test_errors_of_the_sandbox(code: str) -> None:
    async with client_of(replying(error(code))) as client:
        with pytest.raises(SandboxError, match=code):
            await client.reset(question_id="q")


@pytest.mark.parametrize("code", ["EXECUTION_ERROR", "UNKNOWN_TYPE", "", "OTHER"])
async def test_errors_of_the_environment(code: str) -> None:
    async with client_of(replying(error(code))) as client:
        with pytest.raises(EnvironmentFault, match="why"):
            await client.reset(question_id="q")


BREACHES = ["", "[]", "{", "null", '{"type": "observation"}', '{"type": "observation", "data": []}', "[" * 100_000]
BREACHES += ['{"type": "state", "data": {}}', '{"type": "observation", "data": {"observation": [], "done": false}}']
BREACHES += ['{"type": "observation", "data": {"observation": {}}}', '{"type": 5, "data": {}}']


@pytest.mark.parametrize("reply", BREACHES)
async def test_breaches_of_the_protocol_end_the_session(reply: str) -> None:
    async with client_of(replying(reply)) as client:
        with pytest.raises(EnvironmentFault, match="protocol"):
            await client.call_tool("t", {})
        with pytest.raises(SandboxError, match="closed"):
            await client.state()


async def test_a_huge_reply_is_a_sandbox_error() -> None:
    async with client_of(replying("x" * (2**20 + 1))) as client:
        with pytest.raises(SandboxError):
            await client.call_tool("t", {})


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("arguments", [{"a": {1, 2}}, {"a": 10**5000}, nested(5000), {"a": "x" * 2**20}])
async def test_calls_that_cannot_be_sent_are_refused_and_the_session_goes_on(arguments: dict[str, Any]) -> None:
    async with client_of(replying(observation("fine"))) as client:
        with pytest.raises(RefusedRequestError):
            await client.call_tool("t", arguments)
        assert (await client.call_tool("t", {}))["observation"]["result"]["data"] == "fine"


async def test_pings_keep_proxies_awake_and_a_late_pong_ends_nothing() -> None:
    async with client_of(echo_late) as client:
        assert client._socket is not None
        assert client._socket.ping_timeout is None, "a server that is busy for long must not be hung up on"
        assert (client._socket.ping_interval or 0.0) <= 30.0, "proxies close what is silent for a minute"
        assert client._socket.keepalive_task is not None


async def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = OpenEnvClient(f"http://127.0.0.1:{unused.getsockname()[1]}", connect_timeout_s=1.0)
        with pytest.raises(SandboxError, match="Cannot connect"):
            await client.connect()
    await client.close()


async def test_somebody_else_there() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = OpenEnvClient(f"http://127.0.0.1:{port}/?token=SECRET", connect_timeout_s=1.0)
        with pytest.raises(SandboxError) as caught:
            await client.connect()
        assert "SECRET" not in caught.value.message


@pytest.mark.parametrize("answer", ["400 Bad Request", "307 Temporary\r\nLocation: https://login.example/?back=SECRET"])
async def test_the_address_of_a_sandbox_is_told_to_nobody(answer: str) -> None:
    # Daytona's signed addresses hold their token in the host name: https://8000-TOKEN.proxy.daytona.work
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = OpenEnvClient(f"http://127.0.0.1:{port}/preview/SECRET", sandbox="sandbox-1", connect_timeout_s=9.0)
        with pytest.raises(SandboxError, match="in sandbox sandbox-1") as caught:
            await client.connect()
        assert "secret" not in caught.value.message.lower()


def test_neither_is_the_name_that_a_certificate_does_not_fit() -> None:
    client = OpenEnvClient("https://8000-secret.proxy.example", sandbox="sandbox-1")
    mismatch = "certificate verify failed: Hostname mismatch, certificate is not valid for '8000-secret.proxy.example'."
    assert client._reason(ssl.SSLCertVerificationError(1, mismatch)).endswith("not valid for 'its address'.")


async def test_a_reply_that_lay_unread_while_this_process_was_busy_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, busy, answered = threading.Event(), threading.Event(), threading.Event()

    def handler(connection: SyncConnection) -> None:
        for _ in connection:
            asked.set()
            busy.wait(60.0)
            connection.send(observation("fine"))
            answered.set()

    with sync_serve(handler, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = OpenEnvClient(f"http://127.0.0.1:{server.socket.getsockname()[1]}")
        await client.connect()
        call = asyncio.create_task(client.call_tool("t", {}))
        while not asked.is_set():  # noqa: ASYNC110  set by another thread
            await asyncio.sleep(0.001)
        busy.set()
        assert answered.wait(60.0)
        loop = asyncio.get_running_loop()
        late = loop.time() + 3600.0  # as after an hour in which this thread did something else
        monkeypatch.setattr(loop, "time", lambda: late)
        assert (await call)["observation"]["result"]["data"] == "fine"
        monkeypatch.undo()
        await client.close()
        server.shutdown()


@pytest.mark.parametrize(
    ("url", "websocket"),
    [
        ("http://127.0.0.1:80", "ws://127.0.0.1:80/ws"),
        ("https://8000-x.proxy.example/", "wss://8000-x.proxy.example/ws"),
        ("https://x.example/base?token=a", "wss://x.example/base/ws?token=a"),
    ],
)
def test_addresses(url: str, websocket: str) -> None:
    assert websocket_url(url) == websocket
