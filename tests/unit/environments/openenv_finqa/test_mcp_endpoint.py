"""`/mcp` for clients of the Model Context Protocol."""

from __future__ import annotations

import json

import httpx
import pytest
from fixtures.finqa_server import RunningServer


async def test_a_client_of_mcp_plays(server: RunningServer) -> None:
    fastmcp = pytest.importorskip("fastmcp")
    async with fastmcp.Client(f"{server.url()}/mcp?task_id=q1") as client:
        assert "What are total revenues in 2024?" in client.initialize_result.instructions
        tools = {tool.name for tool in await client.list_tools()}
        assert tools == {"get_descriptions", "get_table_info", "sql_query", "submit_answer"}
        tables = await client.call_tool("get_descriptions", {"company_name": "acme"})
        assert json.loads(tables.content[0].text) == ["balance_sheet", "income_statement"]
        refused = await client.call_tool("no_such_tool", {}, raise_on_error=False)
        assert refused.is_error and "Unknown tool" in refused.content[0].text
        answered = await client.call_tool("submit_answer", {"answer": "6118"})
        assert answered.meta == {"done": True, "reward": 1.0}


@pytest.mark.parametrize(
    ("query", "message"),
    [("task_id=nope", "Unknown task_id"), ("split=dev&index=9", "has the tasks"), ("seed=x", "whole number")],
)
async def test_a_question_that_is_none_is_refused(server: RunningServer, query: str, message: str) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    async with httpx.AsyncClient(base_url=server.url()) as http:
        refused = (await http.post(f"/mcp?{query}", json=request)).json()
        assert message in refused["error"]["message"]
        lost = await http.post("/mcp", json={**request, "method": "tools/list"}, headers={"Mcp-Session-Id": "nope"})
        assert lost.status_code == 404
        ended = await http.request("DELETE", "/mcp", json={}, headers={"Mcp-Session-Id": "nope"})
        assert ended.status_code == 404
