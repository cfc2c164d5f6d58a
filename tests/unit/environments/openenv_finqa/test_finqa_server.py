"""The wire: upstream's frames, no truth in any byte, no second verdict, and nothing that a bad frame can break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fixtures.finqa_server import RunningServer
from fixtures.tiny_snapshot import CANARY
from websockets.asyncio.client import ClientConnection, connect

QUERY = "SELECT \"2024\" FROM income_statement WHERE line_item = 'total_revenues'"


class Wire:
    """Raw frames over one socket; keeps every byte received."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.received = ""

    async def send(self, frame: object) -> dict[str, Any]:
        return await self.send_text(json.dumps(frame))

    async def send_text(self, text: str | bytes) -> dict[str, Any]:
        await self.socket.send(text)
        reply = await asyncio.wait_for(self.socket.recv(), 60)
        self.received += str(reply)
        frame: dict[str, Any] = json.loads(reply)
        if frame.get("type") == "observation" and frame["data"]["observation"].get("metadata") == {}:
            del frame["data"]["observation"]["metadata"]  # openenv 0.10 sends it, openenv-core 0.3 does not
        return frame

    async def reset(self, **options: object) -> dict[str, Any]:
        return await self.send({"type": "reset", "data": options})

    async def call(self, tool: str, **arguments: object) -> dict[str, Any]:
        data = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
        return await self.send({"type": "step", "data": data})

    async def state(self) -> dict[str, Any]:
        data: dict[str, Any] = (await self.send({"type": "state"}))["data"]
        return data


@asynccontextmanager
async def wire(server: RunningServer, path: str = "/ws") -> AsyncIterator[Wire]:
    async with connect(f"ws://127.0.0.1:{server.process.port}{path}", max_size=2**22) as socket:
        yield Wire(socket)


def submitted(reward: float) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": {}, "reward": reward, "done": True}}


async def test_frames_are_upstreams(server: RunningServer) -> None:
    async with wire(server) as socket:
        reset = await socket.reset(question_id="q1")
        assert reset == {"type": "observation", "data": {"observation": {}, "reward": 0.0, "done": False}}
        text = '[{"2024":6118}]'
        result = {
            "content": [{"type": "text", "text": text, "annotations": None, "meta": None}],
            "structured_content": {"result": text},
            "meta": {"fastmcp": {"wrap_result": True}},
            "data": text,
            "is_error": False,
        }
        reply = await socket.call("sql_query", company_name="acme", table_name="income_statement", query=QUERY)
        observation = {"tool_name": "sql_query", "result": result, "error": None}
        assert reply == {
            "type": "observation",
            "data": {"observation": observation, "reward": None, "done": False},
        }
        assert await socket.call("submit_answer", answer="6118") == submitted(1.0)


@pytest.mark.parametrize("answer", [6118, 6118.0, "6118", "$6,118"])
async def test_numbers_are_accepted_as_answers(server: RunningServer, answer: object) -> None:
    async with wire(server) as socket:
        await socket.reset(question_id="q1")
        assert await socket.call("submit_answer", answer=answer) == submitted(1.0)


@pytest.mark.parametrize(
    ("tool", "arguments", "kind"),
    [
        ("nope", {}, "tool_not_found"),
        ("get_descriptions", {}, "invalid_args"),
        ("get_descriptions", {"company_name": "acme", "x": 1}, "invalid_args"),
        ("get_descriptions", {"company_name": 5}, "invalid_args"),
        ("get_descriptions", {"company_name": None}, "invalid_args"),
        ("get_descriptions", {"company_name": "x" * 300}, "invalid_args"),
        ("sql_query", {"query": QUERY}, "invalid_args"),
        ("submit_answer", {"answer": True}, "invalid_args"),
        ("submit_answer", {"answer": [6118]}, "invalid_args"),
        ("submit_answer", {"answer": "6118" + " " * 5000}, "invalid_args"),
    ],
)
async def test_refused_calls_are_tool_errors(
    server: RunningServer, tool: str, arguments: dict[str, object], kind: str
) -> None:
    async with wire(server) as socket:
        await socket.reset(question_id="q1")
        data = (await socket.call(tool, **arguments))["data"]
        assert (data["done"], data["reward"], data["observation"]["result"]) == (False, None, None)
        assert data["observation"]["error"]["error_type"] == kind
        assert len(data["observation"]["error"]["message"]) < 200
        assert await socket.call("submit_answer", answer="6118") == submitted(1.0)


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        (
            "get_descriptions",
            {"company_name": ".."},
            "Error: '..' not found. Available companies: ['acme', 'globex']",
        ),
        (
            "get_table_info",
            {"company_name": "acme", "table_name": "x"},
            "Error: Table 'x' not found for company 'acme'",
        ),
        ("get_descriptions", {"company_name": "acme"}, '["balance_sheet", "income_statement"]'),
        (
            "sql_query",
            {"company_name": "acme", "table_name": "income_statement.json", "query": QUERY},
            '[{"2024":6118}]',
        ),
        (
            "sql_query",
            {"company_name": "acme", "table_name": "income_statement", "query": "SELECT x FROM y WHERE 1"},
            "Error executing query: Execution failed on sql 'SELECT x FROM y WHERE 1': no such table: y",
        ),
    ],
)
async def test_tool_texts(server: RunningServer, tool: str, arguments: dict[str, str], text: str) -> None:
    async with wire(server) as socket:
        await socket.reset(question_id="q1")
        assert (await socket.call(tool, **arguments))["data"]["observation"]["result"]["data"] == text


async def test_the_question_is_the_one_asked_for(server: RunningServer) -> None:
    async with wire(server) as socket:
        await socket.reset(question_id="q4", seed=1)
        assert (await socket.state())["question_id"] == "q4"
        drawn = []
        for seed in (7, 7, 8, 9, 10):
            await socket.reset(seed=seed, split="train")
            drawn.append((await socket.state())["question_id"])
        assert drawn[0] == drawn[1]
        assert set(drawn) == {"q1", "q2"}
        for options in ({"question_id": "nope"}, {"question_id": 4}, {"split": "nope"}, {"seed": "x"}):
            reply = await socket.reset(**options)
            assert (reply["type"], reply["data"]["code"]) == ("error", "EXECUTION_ERROR")
        assert (await socket.reset())["type"] == "observation"


async def test_the_truth_is_in_no_byte(server: RunningServer) -> None:
    base = server.url()
    async with httpx.AsyncClient() as http, wire(server) as socket, wire(server, "/mcp") as mcp:
        await socket.reset(question_id="q3")
        await socket.state()
        await socket.call("get_descriptions", company_name="acme")
        await socket.call("sql_query", company_name="acme", table_name="x", query="SELECT answer FROM truth WHERE 1")
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        await socket.send({"type": "mcp", "data": rpc})
        await mcp.send(rpc)
        assert (await socket.call("submit_answer", answer="wrong")) == submitted(0.0)
        state = await socket.state()
        assert (state["done"], state["reward"]) == (True, 0.0)
        assert state["explanation"] == "'wrong' is not the expected text."
        assert "ground_truth" not in state
        seen = socket.received + mcp.received
        for path in ("/metadata", "/schema", "/health", "/openapi.json", "/state", "/docs"):
            seen += (await http.get(base + path)).text
        seen += (await http.post(base + "/mcp", json=rpc)).text
        seen += (await http.post(base + "/reset", json={"question_id": "q3"})).text
        assert CANARY not in seen
        assert CANARY not in server.log.read_text()


async def test_everything_after_the_end_is_refused(server: RunningServer) -> None:
    async with wire(server) as socket:
        await socket.reset(question_id="q1")
        assert await socket.call("submit_answer", answer="1") == submitted(0.0)
        for tool, arguments in (("submit_answer", {"answer": "6118"}), ("get_descriptions", {"company_name": "acme"})):
            data = (await socket.call(tool, **arguments))["data"]
            assert (data["done"], data["reward"]) == (True, None)
            assert data["observation"]["error"]["error_type"] == "execution_error"
            rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
            assert "over" in (await socket.send({"type": "mcp", "data": rpc}))["data"]["error"]["message"]
        assert (await socket.state())["reward"] == 0.0
        await socket.reset(question_id="q1")
        assert await socket.call("submit_answer", answer="6118") == submitted(1.0)


async def test_submit_before_reset_is_refused(server: RunningServer) -> None:
    async with wire(server) as socket, httpx.AsyncClient() as http:
        for answer in ("", "6118"):
            data = (await socket.call("submit_answer", answer=answer))["data"]
            assert (data["done"], data["reward"]) == (False, None)
        action = {"type": "call_tool", "tool_name": "submit_answer", "arguments": {"answer": ""}}
        stateless = (await http.post(server.url() + "/step", json={"action": action})).json()
        assert (stateless["done"], stateless["reward"]) == (False, None)


async def test_the_step_limit_ends_the_episode(server: RunningServer) -> None:
    async with wire(server) as socket:
        await socket.reset(question_id="q1")
        for _ in range(20):
            assert (await socket.call("get_descriptions", company_name="acme"))["data"]["done"] is False
        assert await socket.call("nope") == submitted(0.0)
        assert (await socket.state())["explanation"] == "No answer submitted within 21 steps."


BAD_FRAMES = ["", "[]", "5", "null", '"x"', "{", "[" * 5000, "{" * 5000, '{"type": "x"}', '{"type": "step"}', "{}"]
BAD_FRAMES += ['{"type": "step", "data": {"type": "call_tool"}}', '{"type": "reset", "data": []}', "1" * 5000]
BAD_FRAMES += [
    '{"type": "step", "data": {"type": "call_tool", "tool_name": "a", "arguments": ' + '{"a":' * 900 + "1" + "}" * 902
]


async def test_bad_frames_are_answered_and_the_session_goes_on(server: RunningServer) -> None:
    async with wire(server) as socket:
        await socket.reset(question_id="q1")
        for frame in [*BAD_FRAMES, b"\x00\xff"]:
            assert (await socket.send_text(frame))["type"] in ("error", "observation"), frame
        assert await socket.call("submit_answer", answer="6118") == submitted(1.0)


async def test_a_peer_that_hangs_up_leaves_no_traceback(server: RunningServer) -> None:
    for _ in range(5):
        async with wire(server) as socket:
            await socket.reset(question_id="q1")
            slow = "SELECT count(1) FROM income_statement a, " + ", ".join(f"income_statement t{i}" for i in range(20))
            arguments = {"company_name": "acme", "table_name": "income_statement", "query": slow + " WHERE 1"}
            action = {"type": "call_tool", "tool_name": "sql_query", "arguments": arguments}
            await socket.socket.send(json.dumps({"type": "step", "data": action}))
            socket.socket.transport.abort()
    await asyncio.sleep(2.0)
    assert server.log.read_text() == ""


async def test_a_slow_query_stops_no_other_session(server: RunningServer) -> None:
    slow = "SELECT count(1) FROM " + ", ".join(f"income_statement t{i}" for i in range(20)) + " WHERE 1"
    async with wire(server) as first, wire(server) as second:
        await first.reset(question_id="q1")
        await second.reset(question_id="q1")
        for wait_s in (0.003, 0.01, 0.03) * 6:  # a fast machine ends the slow query in a tenth of a second
            runaway = asyncio.create_task(
                first.call("sql_query", company_name="acme", table_name="income_statement", query=slow)
            )
            await asyncio.sleep(wait_s)
            await second.call("sql_query", company_name="acme", table_name="income_statement", query=QUERY)
            overtaken = not runaway.done()
            text = (await runaway)["data"]["observation"]["result"]["data"]
            assert text == "Error executing query: the query was stopped after 10,000,000 steps"
            if overtaken:
                break
        assert overtaken


@pytest.mark.filterwarnings("ignore")
async def test_the_stock_client_works(server: RunningServer) -> None:
    mcp_client = pytest.importorskip("openenv.core.mcp_client")
    from openenv.core.env_server.mcp_types import CallToolAction

    async with mcp_client.MCPToolClient(base_url=server.url()) as client:
        await client.reset(question_id="q1")
        tools = await client.list_tools()
        assert [tool.name for tool in tools] == ["get_descriptions", "get_table_info", "sql_query", "submit_answer"]
        assert tools[2].input_schema["required"] == ["company_name", "table_name", "query"]
        reply = await client.call_tool("sql_query", company_name="acme", table_name="income_statement", query=QUERY)
        assert reply == '[{"2024":6118}]'
        result = await client.step(CallToolAction(tool_name="submit_answer", arguments={"answer": "6118"}))
        assert (result.reward, result.done) == (1.0, True)
        assert (await client.state()).step_count == 2
        await client.reset(question_id="q2")
        client.use_production_mode = True
        assert len(await client.list_tools(use_cache=False)) == 4
        assert "balance_sheet" in str(await client.call_tool("get_descriptions", company_name="acme"))
