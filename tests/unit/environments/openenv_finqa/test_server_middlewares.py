"""The middlewares alone, where a real server on loopback cannot go: addresses beyond it, and servers of other kinds."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from finqa_plugins.environments.openenv_finqa.server.peers import Peers
from finqa_plugins.environments.openenv_finqa.server.server_limits import ServerLimits
from finqa_plugins.environments.openenv_finqa.server.server_middlewares import Event, Receive, Send, guard

TOKEN = "0123456789abcdef"


async def echo(scope: Event, receive: Receive, send: Send) -> None:
    """Answer a POST with the length of its body."""
    event: Event = {"body": b""}
    if scope["method"] == "POST":
        event = await receive()
        assert event["more_body"] is False, "bodies come whole"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(len(event["body"])).encode()})


def client(limits: ServerLimits, address: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=guard(echo, limits, Peers(limits)), client=("10.0.0.9", 1))  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url=f"http://{address}:8000")


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        (ServerLimits(), 403),
        (ServerLimits(hosts=None), 403),
        (ServerLimits(token=TOKEN, hosts=None), 401),
        (ServerLimits(require_token=False), 403),
        (ServerLimits(require_token=False, hosts=frozenset({"10.0.0.7"})), 200),
        (ServerLimits(require_token=False, hosts=None), 200),
    ],
)
async def test_an_app_that_another_server_binds_beyond_loopback_still_needs_a_token(
    limits: ServerLimits, status: int
) -> None:
    async with client(limits, "10.0.0.7") as http:
        assert (await http.get("/metadata")).status_code == status
        assert (await http.get("/health")).status_code == 200
        if limits.token:
            allowed = await http.get("/metadata", headers={"Authorization": f"Bearer {TOKEN}"})
            assert allowed.status_code == 200


@pytest.mark.parametrize(
    "origin", ["null", "", "http://", "file://localhost", "http://[", "http://localhost@evil.example"]
)
async def test_what_is_no_origin_of_ours_is_refused(origin: str) -> None:
    async with client(ServerLimits(), "127.0.0.1") as http:
        assert (await http.get("/metadata", headers={"Origin": origin})).status_code == 403


async def test_a_body_reaches_the_application_whole() -> None:
    async def parts() -> Any:
        for _ in range(10):
            yield b"x" * 1000

    async with client(ServerLimits(), "127.0.0.1") as http:
        reply = await http.post("/mcp", content=parts(), headers={"Content-Type": "application/json"})
        assert (reply.status_code, reply.text) == (200, "10000")


@pytest.mark.parametrize("length", ["x", "-1", "9" * 40, "1048577"])
async def test_a_declared_length_is_a_bound_or_refused(length: str) -> None:
    async with client(ServerLimits(), "127.0.0.1") as http:
        headers = {"Content-Type": "application/json", "Content-Length": length}
        assert (await http.post("/mcp", content=b"{}", headers=headers)).status_code == 413


async def test_a_websocket_of_a_server_without_denials_is_closed() -> None:
    sent: list[Event] = []

    async def receive() -> Event:
        return {"type": "websocket.connect"}

    async def send(event: Event) -> None:
        sent.append(event)

    scope = {"type": "websocket", "path": "/ws", "query_string": b"", "headers": [(b"host", b"evil.example")]}
    await guard(echo, ServerLimits(), Peers(ServerLimits()))(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
