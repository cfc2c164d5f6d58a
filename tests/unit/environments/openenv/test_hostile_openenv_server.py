"""A server that sends what no server should: each fault names the server, is short, and is not one of finqa."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest
from websockets.asyncio.server import Request, Response, ServerConnection, serve
from websockets.datastructures import Headers

from finqa_cli.contracts import EnvironmentContext, Session
from finqa_cli.errors import EnvironmentFault, FinqaError, SandboxError
from finqa_cli.types import ToolCall
from finqa_plugins.environments.openenv.config import OpenEnvConfig
from finqa_plugins.environments.openenv.openenv_environment import OpenEnvEnvironment

SCHEMA = json.dumps({"action": {"properties": {"move": {"type": "string"}}}, "observation": {}, "state": {}})
DEEP = '{"action":' + '{"a":' * 3000 + "1" + "}" * 3001


def observation(reward: str = "null") -> str:
    return f'{{"type": "observation", "data": {{"observation": {{"text": "x"}}, "reward": {reward}, "done": false}}}}'


@asynccontextmanager
async def session_of(step: str, schema: str = SCHEMA, reset: str = "") -> AsyncIterator[Session]:
    """A session of a server that answers each step with the same frame."""

    async def frames(connection: ServerConnection) -> None:
        async for raw in connection:
            kind = json.loads(raw)["type"]
            no_tools = json.dumps({"type": "mcp", "data": {"error": {"code": -32601, "message": "none"}}})
            await connection.send({"reset": reset or observation(), "mcp": no_tools}.get(kind, step))

    def pages(_: ServerConnection, request: Request) -> Response | None:
        if request.path.startswith("/ws"):
            return None
        body = (schema if request.path.startswith("/schema") else "{}").encode()
        headers = Headers([("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return Response(HTTPStatus.OK.value, "OK", headers, body)

    async with serve(frames, "127.0.0.1", 0, process_request=pages) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        config = OpenEnvConfig(url=f"http://127.0.0.1:{port}", tasks=1)
        environment = OpenEnvEnvironment(config, EnvironmentContext(snapshot=None))
        (task,) = environment.tasks(environment.splits()[0])
        session = await environment.open(task, seed=0, sandbox=None)
        try:
            yield session
        finally:
            await session.close()


async def fault_of(step: str, schema: str = SCHEMA) -> FinqaError:
    with pytest.raises(FinqaError) as caught:
        async with session_of(step, schema) as session:
            (tool,) = session.prompt().tools
            await session.step(ToolCall(name=tool.name, arguments={"move": "up"}))
    return caught.value


@pytest.mark.parametrize(
    ("reward", "shown"),
    [("NaN", "nan"), ("1e999", "inf"), ("-Infinity", "-inf"), ("1" + "0" * 400, "inf"), ('"1"', "a str")],
)
async def test_a_reward_that_is_no_number_is_a_fault_of_the_server(reward: str, shown: str) -> None:
    fault = await fault_of(observation(reward))
    assert isinstance(fault, EnvironmentFault)
    assert fault.message.startswith("The environment server gave a reward") and shown in fault.message
    assert fault.message.endswith("in step 1.")


async def test_an_error_of_any_length_is_shown_printable_and_short() -> None:
    data = {"code": "X" * 100_000, "message": "\x1b[31m" * 10_000}
    fault = await fault_of(json.dumps({"type": "error", "data": data}))
    assert len(fault.message) < 3000 and fault.message.isprintable()


@pytest.mark.parametrize("depth", [150, 5000, 50_000])
async def test_deep_frames_are_a_breach_of_the_protocol(depth: int) -> None:
    frame = '{"type": "observation", "data": ' + "[" * depth + "]" * depth + "}"
    assert "violated the protocol" in (await fault_of(frame)).message


async def test_a_deep_schema_names_the_server() -> None:
    fault = await fault_of(observation("0"), DEEP)
    assert isinstance(fault, SandboxError) and "is not an OpenEnv server: /schema" in fault.message


async def test_the_reason_why_no_episode_starts_is_shown() -> None:
    over = {
        "observation": {"metadata": {"error": "KEY is not set.\x1b[31m" + "x" * 10_000}},
        "reward": None,
        "done": True,
    }
    with pytest.raises(EnvironmentFault, match=r"already over.*KEY is not set") as caught:
        async with session_of("", reset=json.dumps({"type": "observation", "data": over})):
            pass
    assert caught.value.message.isprintable() and len(caught.value.message) < 500
