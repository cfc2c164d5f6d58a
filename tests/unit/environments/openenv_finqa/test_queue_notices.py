"""Waiting in the server's queue is reported and counts neither for the client's patience nor in the episode's time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import pytest
from fixtures.finqa_server import RunningServer
from fixtures.hostile_sql import ATTACKS, TABLE
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from finqa_cli.contracts import uncounted
from finqa_cli.errors import EnvironmentFault, SandboxError
from finqa_plugins.environments._openenv import openenv_client
from finqa_plugins.environments._openenv.openenv_client import QUEUE_NOTICES, OpenEnvClient
from finqa_plugins.environments.openenv_finqa.server.queue_notices import FIRST_NOTICE_S

BOMB = ATTACKS["digits-long"]
BOMBERS = 6
TOO_LONG = "Error executing query: the query took longer than 1 s"


def notice(*, waiting: bool) -> str:
    return json.dumps({"type": "queue", "data": {"waiting": waiting, "queued_s": 1.0}})


REPLY = json.dumps({"type": "observation", "data": {"observation": {}, "reward": None, "done": False}})


@asynccontextmanager
async def client_of(
    frames: Sequence[str | float], *, reply_timeout_s: float = 60.0
) -> AsyncIterator[tuple[OpenEnvClient, list[str]]]:
    """A client of a server that sends these frames for each request, and sleeps for the seconds between them."""
    wanted: list[str] = []

    async def handler(connection: ServerConnection) -> None:
        assert connection.request is not None
        wanted.append(connection.request.headers.get("X-OpenEnv-Queue-Notices", ""))
        async for _ in connection:
            for frame in frames:
                if isinstance(frame, str):
                    await connection.send(frame)
                else:
                    await asyncio.sleep(frame)

    async with serve(handler, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        client = OpenEnvClient(f"http://127.0.0.1:{port}", reply_timeout_s=reply_timeout_s)
        await client.connect()
        try:
            yield client, wanted
        finally:
            await client.close()


async def test_notices_prolong_the_patience_with_a_reply() -> None:
    frames = [notice(waiting=True), 1.0, notice(waiting=True), 1.0, notice(waiting=False), 1.0, REPLY]
    async with client_of(frames, reply_timeout_s=2.0) as (client, wanted):
        assert await client.step({}) == json.loads(REPLY)["data"]
        assert await client.step({}) == json.loads(REPLY)["data"]  # and none is left over for the next request
        assert wanted == ["1"]


@pytest.mark.parametrize("waiting", [True, False])
async def test_a_server_that_falls_silent_after_a_notice_is_lost(waiting: bool) -> None:
    async with client_of([notice(waiting=waiting)], reply_timeout_s=0.2) as (client, _):
        with pytest.raises(SandboxError, match=r"did not reply within 0.2 s"):
            await client.step({})
        assert not client.connected


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openenv_client, "LONGEST_QUEUE_S", 0.5)
    async with client_of([notice(waiting=True), 0.1] * 1000) as (client, _):
        with pytest.raises(SandboxError, match=r"kept a request in its queue for 0.5 s"):
            await client.step({})
        assert not client.connected


@pytest.mark.parametrize("data", [{}, {"waiting": 1}, {"waiting": None}, [], None, "x"])
async def test_a_malformed_notice_breaks_the_protocol(data: object) -> None:
    async with client_of([json.dumps({"type": "queue", "data": data}), REPLY]) as (client, _):
        with pytest.raises(EnvironmentFault, match="violated the protocol"):
            await client.step({})


async def test_time_in_the_queue_does_not_count() -> None:
    spans: list[float] = []

    @contextmanager
    def stopped() -> Iterator[None]:
        began = asyncio.get_running_loop().time()
        yield
        spans.append(asyncio.get_running_loop().time() - began)

    token = uncounted.set(stopped)
    try:
        async with client_of(
            [0.3, notice(waiting=True), 0.2, notice(waiting=True), 0.2, notice(waiting=False), 0.3, REPLY]
        ) as (client, _):
            began = asyncio.get_running_loop().time()
            await client.step({})
            taken = asyncio.get_running_loop().time() - began
    finally:
        uncounted.reset(token)
    assert len(spans) == 2
    assert 0.3 < sum(spans) < taken - 0.5


@pytest.mark.thorough
@pytest.mark.parametrize("wants", [True, False])
async def test_a_full_server_says_who_waits_and_answers_everyone(server: RunningServer, wants: bool) -> None:
    """More bombs than processes: those that come late wait, and each gets its own verdict."""
    request = {"company_name": "acme", "table_name": TABLE, "query": BOMB}
    step = json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": "sql_query", "arguments": request}})
    headers = QUEUE_NOTICES if wants else {}

    async def bomb() -> list[dict[str, object]]:
        async with connect(f"ws://127.0.0.1:{server.process.port}/ws", additional_headers=headers) as socket:
            await socket.send(step)
            frames = []
            while not frames or frames[-1]["type"] == "queue":
                frames.append(json.loads(await asyncio.wait_for(socket.recv(), 120)))
            return frames

    heard = await asyncio.gather(*(bomb() for _ in range(BOMBERS)))
    waited = 0
    for *notices, reply in heard:
        result = reply["data"]["observation"]["result"]
        assert result["data"] == TOO_LONG
        queued_s = result["meta"].get("finqa", {}).get("queued_s", 0.0)
        waited += queued_s >= FIRST_NOTICE_S
        if not wants:
            assert notices == []
        elif notices:
            assert queued_s >= notices[-1]["data"]["queued_s"] > 0
            assert notices[0]["data"]["waiting"] is True
            assert notices[-1]["data"]["waiting"] is False
    assert waited >= BOMBERS - 4  # at most four run at a time
    if wants:
        assert sum(len(frames) > 1 for frames in heard) >= BOMBERS - 4
