"""The rest of the protocol: MCP in all its places, expiry, bad requests over HTTP, sockets that are left open."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from fixtures.finqa_server import RunningServer
from fixtures.hostile_frames import QUERY
from fixtures.tiny_snapshot import write_tiny_snapshot
from websockets.asyncio.client import connect

from finqa_plugins.environments.openenv_finqa.server.server_episode import ServerOptions, ToolService
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotReader

if TYPE_CHECKING:
    from openenv.core.env_server.mcp_types import CallToolAction

    from finqa_plugins.environments.openenv_finqa.server.server_app import FinQAServerEnvironment

NAMES = {"company_name": "acme", "table_name": "income_statement"}
TOOLS = ["get_descriptions", "get_table_info", "sql_query", "submit_answer"]


def rpc(method: str, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


@pytest.fixture
def session(tmp_path: Path) -> FinQAServerEnvironment:
    """A session without its connection. Tests that do not use it need not wait for openenv-core's imports."""
    from finqa_plugins.environments.openenv_finqa.server.server_app import FinQAServerEnvironment

    service = ToolService(SnapshotReader(write_tiny_snapshot(tmp_path).path), ServerOptions())
    return FinQAServerEnvironment(service, ServerOptions())


def call(tool: str, **arguments: object) -> CallToolAction:
    from openenv.core.env_server.mcp_types import CallToolAction

    return CallToolAction(tool_name=tool, arguments=arguments)


def submit(answer: object) -> CallToolAction:
    return call("submit_answer", answer=answer)


async def test_list_tools_is_a_step_too(session: FinQAServerEnvironment) -> None:
    from openenv.core.env_server.mcp_types import ListToolsAction

    listed = await session.step_async(ListToolsAction())
    assert [tool.name for tool in listed.tools] == TOOLS
    assert session.state.step_count == 0


async def test_mcp_over_http_and_websocket(server: RunningServer) -> None:
    call = rpc("tools/call", name="sql_query", arguments={**NAMES, "query": QUERY})
    async with httpx.AsyncClient(base_url=server.url()) as http:
        listed = (await http.post("/mcp", json=rpc("tools/list"))).json()
        assert [tool["name"] for tool in listed["result"]["tools"]] == TOOLS
        assert listed["result"]["tools"][2]["inputSchema"]["required"] == ["company_name", "table_name", "query"]
        assert (await http.post("/mcp", json=call)).json()["result"]["data"] == '[{"2024":6118}]'
    async with connect(f"ws://127.0.0.1:{server.process.port}/mcp") as raw:
        for request, key in ((rpc("tools/list"), "result"), (call, "result"), (rpc("nope"), "error")):
            await raw.send(json.dumps(request))
            reply = json.loads(await raw.recv())
            assert (reply["id"], key in reply) == (7, True)


async def test_a_reward_needs_a_reset(server: RunningServer) -> None:
    """Neither over HTTP, where every request is a session of its own, nor over MCP."""
    action = {"type": "call_tool", "tool_name": "submit_answer", "arguments": {"answer": ""}}
    call = rpc("tools/call", name="submit_answer", arguments={"answer": ""})
    async with httpx.AsyncClient(base_url=server.url()) as http:
        await http.post("/reset", json={"question_id": "q1"})
        stepped = (await http.post("/step", json={"action": action})).json()
        assert (stepped["reward"], stepped["done"]) == (None, False)
        assert "reset first" in (await http.post("/mcp", json=call)).json()["error"]["message"]
        assert (await http.get("/state")).json() == {"episode_id": None, "step_count": 0} | {
            "current_question": "",
            "current_company": "",
            "question_id": "",
            "done": False,
        }


async def test_an_answer_over_mcp_ends_the_episode_and_counts_once(session: FinQAServerEnvironment) -> None:
    session.reset(question_id="q1")
    assert (await session.mcp_client.call_tool("submit_answer", {"answer": 6118}))["data"] == "Answer submitted: 6118"
    assert session.state.reward == 1.0
    again = await session.step_async(submit("5"))
    assert (again.done, again.reward) == (True, None)
    assert session.state.reward == 1.0


@pytest.mark.parametrize("answer", [6118, 6118.0, "6118", "6,118"])
async def test_json_numbers_are_answers(session: FinQAServerEnvironment, answer: object) -> None:
    session.reset(question_id="q1")
    assert (await session.step_async(submit(answer))).reward == 1.0


@pytest.mark.parametrize("answer", [float("nan"), float("inf"), True, None, [6118], {"a": 1}, "9" * 5000, 10**400])
async def test_other_values_are_worth_nothing(session: FinQAServerEnvironment, answer: object) -> None:
    session.reset(question_id="q1")
    assert (await session.step_async(submit(answer))).reward in (None, 0.0)


async def test_nothing_runs_once_a_session_has_expired(session: FinQAServerEnvironment) -> None:
    session.reset(question_id="q1")
    session.close()
    query = call("sql_query", **NAMES, query=QUERY)
    for attempt in (
        lambda: session.step_async(query),
        lambda: session.step_async(submit("6118")),
        lambda: session.mcp_client.call_tool("sql_query", query.arguments),
        lambda: session.reset_async(question_id="q1"),
    ):
        with pytest.raises(RuntimeError, match="expired"):
            await attempt()
    assert session.state.done is False


@pytest.mark.parametrize(
    "options",
    [
        *({"question_id": "nope"}, {"question_id": ""}, {"question_id": ["q1"]}, {"question_id": "../truth.jsonl"}),
        *({"split": "nope"}, {"seed": "x"}, {"seed": True}, {"episode_id": 5}, {"episode_id": "x" * 256}),
    ],
)
async def test_a_refused_reset_leaves_the_episode_as_it_was(
    session: FinQAServerEnvironment, options: dict[str, object]
) -> None:
    session.reset(question_id="q1", episode_id="mine")
    with pytest.raises(LookupError):
        await session.reset_async(**options)
    assert (session.state.question_id, session.state.episode_id) == ("q1", "mine")
    assert (await session.step_async(submit("6118"))).reward == 1.0


async def test_a_seed_draws_from_a_split(session: FinQAServerEnvironment) -> None:
    drawn = set()
    for seed in range(20):
        session.reset(seed=seed, split="test")
        drawn.add(session.state.question_id)
        question = session.state.question_id
        session.reset(seed=seed, split="test")
        assert session.state.question_id == question
    assert drawn == {"q4", "q5"}


BAD_BODIES = {
    "/reset": [
        '{"question_id": "nope"}',
        '{"question_id": "\\ud800"}',
        '{"seed": "x"}',
        '{"seed": -1}',
        "[]",
        "5",
        "{",
    ],
    "/step": [
        '{"action": {"type": "\\ud800"}}',
        '{"action": 5}',
        "{}",
        '{"action": {"type": "call_tool"}}',
        "[" * 9000,
    ],
    "/mcp": ['{"jsonrpc": "2.0", "id": 1, "method": "\\ud800"}', "[]", "{", '{"method": "tools/list"}', '{"a":' * 900],
}


@pytest.mark.parametrize("path", BAD_BODIES)
async def test_bad_http_requests_are_told_and_leave_no_traceback(server: RunningServer, path: str) -> None:
    async with httpx.AsyncClient(base_url=server.url()) as http:
        for body in [*BAD_BODIES[path], '{"x": "' + "y" * 100_000 + '"}', "\x00", ""]:
            reply = await http.post(path, content=body.encode(), headers={"content-type": "application/json"})
            assert reply.status_code in (200, 400, 422), body[:80]
            assert len(reply.text) < 3000
        assert (await http.post("/reset", json={"question_id": "q1"})).status_code == 200
    assert server.log.read_text(encoding="utf-8") == ""


async def test_sockets_that_nobody_reads_hold_up_nobody(server: RunningServer) -> None:
    """Peers that vanish without a word, before, in and after the handshake."""
    idle = [socket.create_connection(("127.0.0.1", server.process.port)) for _ in range(20)]
    handshake = (
        b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    )
    for place, connection in enumerate(idle):
        connection.sendall(handshake + (b"\r\n" if place % 2 else b""))
    for connection in idle[:10]:
        connection.close()
    async with asyncio.timeout(10), connect(f"ws://127.0.0.1:{server.process.port}/ws") as alive:
        for _ in range(20):
            await alive.send('{"type":"state"}')
            assert json.loads(await alive.recv())["type"] == "state"
    for connection in idle[10:]:
        connection.close()
    assert await server.healthy()
    assert server.log.read_text(encoding="utf-8") == ""


async def test_table_info_of_a_table_whose_first_column_is_a_number(tmp_path: Path) -> None:
    from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots

    companies = tmp_path / "data" / "input_companies"
    (companies / "acme").mkdir(parents=True)
    rows = [{"year": 2023, "revenues": 5}, {"year": 2024, "revenues": 6}]
    (companies / "acme" / "by_year.json").write_text(json.dumps(rows), encoding="utf-8")
    cleaned = {"acme/by_year": {"table": json.dumps(rows), "title": "By year"}}
    (companies / "tables_cleaned_all_companies.json").write_text(json.dumps(cleaned), encoding="utf-8")
    (tmp_path / "data" / "benchmark_questions").mkdir()
    (tmp_path / "data" / "benchmark_questions" / "finqa.csv").write_text(
        "id,user_query,company,question,answer\n1,What are revenues?,acme,What are revenues?,6\n", encoding="utf-8"
    )
    snapshot, _ = LocalSnapshots(tmp_path / "home").build("numbers", tmp_path / "data")
    service = ToolService(SnapshotReader(snapshot.path), ServerOptions())
    info = json.loads(await service.call("get_table_info", {"company_name": "acme", "table_name": "by_year.json"}))
    assert info["column_dtypes"] == {"year": "int64", "revenues": "int64"}
    assert info["unique_vals_per_col"] == {"year": [2023, 2024]}


@pytest.mark.parametrize(
    "name", ["..", "../..", "/etc/passwd", "acme/../acme", "acme\x00", "", ".", "~", "C:\\", "%2e%2e"]
)
async def test_names_are_no_paths(session: FinQAServerEnvironment, server: RunningServer, name: str) -> None:
    """What comes back is the name as it was given, never a place on this machine."""
    session.reset(question_id="q1")
    for tool, arguments in (
        ("get_descriptions", {"company_name": name}),
        ("get_table_info", {"company_name": name, "table_name": "income_statement"}),
        ("get_table_info", {"company_name": "acme", "table_name": name}),
        ("sql_query", {"company_name": name, "table_name": "income_statement", "query": "SELECT 1 WHERE 1"}),
        ("sql_query", {"company_name": "acme", "table_name": name, "query": "SELECT 1 WHERE 1"}),
    ):
        text = (await session.step_async(call(tool, **arguments))).result["data"]
        assert text.startswith("Error: ")
        assert "sqlite" not in text
        assert "tmp" not in text
