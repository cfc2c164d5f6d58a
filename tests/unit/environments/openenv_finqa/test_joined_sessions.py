"""`/ws?session_id=` joins the session of `openenv/session/create`, as clients of openenv 0.10 expect."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fixtures.finqa_server import RunningServer
from websockets.asyncio.client import ClientConnection, connect


async def rpc(server: RunningServer, method: str, **params: object) -> dict[str, Any]:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with httpx.AsyncClient() as http:
        reply: dict[str, Any] = (await http.post(f"{server.url()}/mcp", json=request)).json()
    return reply


async def created(server: RunningServer) -> str:
    return str((await rpc(server, "openenv/session/create"))["result"]["session_id"])


def joined(server: RunningServer, session_id: str) -> connect:
    return connect(f"ws://127.0.0.1:{server.process.port}/ws?session_id={session_id}")


async def ask(socket: ClientConnection, kind: str, **data: object) -> dict[str, Any]:
    await socket.send(json.dumps({"type": kind, "data": data} if kind != "state" else {"type": kind}))
    reply: dict[str, Any] = json.loads(await socket.recv())
    return reply


async def test_both_ways_lead_to_one_episode(server: RunningServer) -> None:
    session_id = await created(server)
    async with joined(server, session_id) as socket:
        await ask(socket, "reset", question_id="q1")
        call = {"name": "get_descriptions", "arguments": {"company_name": "acme"}, "session_id": session_id}
        assert "income_statement" in (await rpc(server, "tools/call", **call))["result"]["data"]
        assert (await ask(socket, "state"))["data"]["step_count"] == 1
        submit = {"name": "submit_answer", "arguments": {"answer": "6118"}, "session_id": session_id}
        assert "error" not in await rpc(server, "tools/call", **submit)
        assert (await ask(socket, "state"))["data"]["reward"] == 1.0


async def test_the_session_outlives_the_websocket_until_it_is_closed(server: RunningServer) -> None:
    session_id = await created(server)
    async with joined(server, session_id) as socket:
        await ask(socket, "reset", question_id="q2")
    async with joined(server, session_id) as socket:
        assert (await ask(socket, "state"))["data"]["question_id"] == "q2"
    assert (await rpc(server, "openenv/session/close", session_id=session_id))["result"]["closed"]
    async with joined(server, session_id) as socket:
        assert json.loads(await socket.recv())["data"]["code"] == "SESSION_ERROR"


async def test_only_one_websocket_joins(server: RunningServer) -> None:
    session_id = await created(server)
    async with joined(server, session_id) as socket, joined(server, session_id) as second:
        refused = json.loads(await second.recv())["data"]
        assert (refused["code"], "already has an attached WebSocket" in refused["message"]) == ("SESSION_ERROR", True)
        assert (await ask(socket, "reset", question_id="q1"))["type"] == "observation"


@pytest.mark.parametrize("session_id", ["nope", "%ff%00", "x" * 3000])
async def test_an_unknown_session_cannot_be_joined(server: RunningServer, session_id: str) -> None:
    async with joined(server, session_id) as socket:
        refused = json.loads(await socket.recv())["data"]
    assert refused["code"] == "SESSION_ERROR"
    assert len(refused["message"]) <= 300


async def test_a_websocket_without_wish_has_a_session_of_its_own(server: RunningServer) -> None:
    session_id = await created(server)
    async with connect(f"ws://127.0.0.1:{server.process.port}/ws?token=x&session_id=") as socket:
        await ask(socket, "reset", question_id="q1")
        async with joined(server, session_id) as other:
            assert (await ask(other, "state"))["data"]["question_id"] == ""
