"""Frames that were not requested, and replies of another tool: the session ends, and nothing of them is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve

from finqa_cli.errors import EnvironmentFault, SandboxError
from finqa_plugins.environments._openenv.openenv_client import OpenEnvClient
from finqa_plugins.environments.openenv_finqa.finqa_tools import TOOLS


def observation(tool: str, text: str = "text") -> str:
    data = {"observation": {"tool_name": tool, "result": {"data": text}, "error": None}, "reward": None, "done": False}
    return json.dumps({"type": "observation", "data": data})


@asynccontextmanager
async def client_that_hears(replies: list[str], *more: str) -> AsyncIterator[OpenEnvClient]:
    """The server sends all of `replies` at the first request, and one of `more` at each later one."""

    async def handler(connection: ServerConnection) -> None:
        rest = iter(more)
        first = True
        async for _ in connection:
            for reply in replies if first else [next(rest)]:
                await connection.send(reply)
            first = False

    async with serve(handler, "127.0.0.1", 0) as server:
        client = OpenEnvClient(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", tools=TOOLS)
        await client.connect()
        try:
            yield client
        finally:
            await client.close()


async def test_a_repeated_reply_ends_the_session_before_the_next_request() -> None:
    async with client_that_hears([observation("sql_query")] * 2, observation("sql_query", "never read")) as client:
        assert (await client.call_tool("sql_query", {}))["observation"]["result"]["data"] == "text"
        await asyncio.sleep(0.05)
        with pytest.raises(EnvironmentFault, match="an unexpected frame"):
            await client.call_tool("sql_query", {})
        assert not client.connected
        with pytest.raises(SandboxError, match="closed"):
            await client.state()


@pytest.mark.parametrize(("asked", "told"), [("sql_query", "submit_answer"), ("sql_query", "x"), ("x", "sql_query")])
async def test_a_reply_of_another_tool_ends_the_session(asked: str, told: str) -> None:
    async with client_that_hears([observation(told)]) as client:
        with pytest.raises(EnvironmentFault, match=f"'{told}' where one of '{asked}' was due"):
            await client.call_tool(asked, {})
        assert not client.connected


async def test_the_name_of_an_unknown_tool_may_come_back_cut() -> None:
    async with client_that_hears([observation("x" * 64)]) as client:
        assert await client.call_tool("x" * 100, {})


async def test_a_refusal_that_nobody_asked_for_is_no_refusal_of_the_next_call() -> None:
    refusal = json.dumps({"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "no"}})
    async with client_that_hears([observation("sql_query"), refusal], observation("sql_query")) as client:
        await client.call_tool("sql_query", {})
        await asyncio.sleep(0.05)
        with pytest.raises(EnvironmentFault, match="an unexpected frame"):
            await client.call_tool("sql_query", {})


async def test_a_connection_lost_between_calls_is_a_sandbox_error() -> None:
    async def hang_up(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(observation("sql_query"))

    async with serve(hang_up, "127.0.0.1", 0) as server:
        client = OpenEnvClient(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", tools=TOOLS)
        await client.connect()
        await client.call_tool("sql_query", {})
        await asyncio.sleep(0.05)
        with pytest.raises(SandboxError, match="lost"):
            await client.call_tool("sql_query", {})
        assert not client.connected


@pytest.mark.parametrize("code", ["X" * 100_000, "EXECUTION_ERROR", "VALIDATION_ERROR", "CAPACITY_REACHED", {"a": [1]}])
async def test_errors_of_servers_are_short_and_printable(code: object) -> None:
    errors = [{"loc": ["\x1b[2J"], "msg": "\x1b]0;x\x07" * 500}, {"loc": 7, "msg": None}]
    error = {"type": "error", "data": {"code": code, "message": "\x1b[31m" * 10_000, "errors": errors}}
    async with client_that_hears([json.dumps(error)]) as client:
        with pytest.raises(Exception, match="31m") as raised:
            await client.step({})
    assert str(raised.value).isprintable() and len(str(raised.value)) < 1000
