"""Random frames and calls against a real server: each is answered, none ends the server or shows in its log."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from fixtures.finqa_server import RunningServer
from fixtures.hostile_frames import QUERY, random_calls, random_frames
from fixtures.tiny_snapshot import CANARY
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

MAX_FRAME = 2**20
LONGEST_REPLY = 16_384
COUNTS = [500, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]


async def exchanged(server: RunningServer, path: str, frames: list[str | bytes]) -> Counter[str]:
    """Kinds of replies. A frame above the size limit may close the socket, and so may `close`; nothing else."""
    kinds: Counter[str] = Counter()
    socket: ClientConnection | None = None
    for frame in frames:
        if socket is None:
            socket = await connect(f"ws://127.0.0.1:{server.process.port}{path}", compression=None, ping_interval=None)
        try:
            await socket.send(frame)
            reply = str(await asyncio.wait_for(socket.recv(), 60))
        except ConnectionClosed:
            assert len(frame) > MAX_FRAME or '"close"' in str(frame), frame[:300]
            kinds["closed"] += 1
            socket = None
            continue
        assert len(reply) <= 3 * LONGEST_REPLY  # a result is in its frame three times
        assert CANARY not in reply
        received = json.loads(reply)
        kinds[str(received.get("data", {}).get("code") or received.get("type", "rpc"))] += 1
    if socket is not None:
        await socket.close()
    return kinds


async def alive(server: RunningServer) -> bool:
    """A whole episode still works, and nothing was logged."""
    step = {"type": "call_tool", "tool_name": "submit_answer", "arguments": {"answer": "6118"}}
    async with connect(f"ws://127.0.0.1:{server.process.port}/ws") as socket:
        await socket.send(json.dumps({"type": "reset", "data": {"question_id": "q1"}}))
        await socket.recv()
        await socket.send(json.dumps({"type": "step", "data": step}))
        reply = json.loads(await socket.recv())
    return reply["data"]["reward"] == 1.0 and await server.healthy() and server.log.read_text(encoding="utf-8") == ""


@pytest.mark.parametrize("count", COUNTS)
async def test_random_frames(server: RunningServer, count: int) -> None:
    kinds = await exchanged(server, "/ws", list(random_frames(3, count)))
    assert "SESSION_ERROR" not in kinds
    assert min(kinds[kind] for kind in ("observation", "state", "mcp", "INVALID_JSON", "VALIDATION_ERROR")) > 5
    assert await alive(server)


async def test_random_frames_on_the_mcp_socket(server: RunningServer) -> None:
    kinds = await exchanged(server, "/mcp", list(random_frames(4, 200)))
    assert kinds["rpc"] > 150
    assert await alive(server)


@pytest.mark.parametrize("count", COUNTS)
async def test_random_calls(server: RunningServer, count: int) -> None:
    reset = json.dumps({"type": "reset", "data": {"question_id": "q1"}})
    frames: list[str | bytes] = []
    for number, (tool, arguments) in enumerate(random_calls(5, count)):
        if number % 10 == 0:
            frames.append(reset)
        data = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
        frames.append(json.dumps({"type": "step", "data": data}))
    kinds = await exchanged(server, "/ws", frames)
    assert "SESSION_ERROR" not in kinds
    assert "EXECUTION_ERROR" not in kinds
    assert kinds["observation"] > count / 2
    assert await alive(server)


def test_generators_repeat_themselves() -> None:
    assert list(random_frames(1, 50)) == list(random_frames(1, 50)) != list(random_frames(2, 50))
    assert repr(list(random_calls(1, 50))) == repr(list(random_calls(1, 50)))
    assert any(arguments.get("query") == QUERY for _, arguments in random_calls(1, 50) if isinstance(arguments, dict))
