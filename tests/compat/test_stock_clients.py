"""OpenEnv's own clients, as published, play whole episodes against our server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from compat.stock_versions import StockOpenEnv
from fixtures.finqa_server import RunningServer

SCRIPT = Path(__file__).with_name("stock_client.py")
ROW = '[{"2024":6118}]'


@pytest.fixture(scope="module")
def seen(stock: StockOpenEnv, our_server: RunningServer) -> dict[str, Any]:
    """What the client of one version saw; one process for all its episodes, because its imports take seconds."""
    command = [stock.python, SCRIPT, our_server.url()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("client", ["MCPToolClient", "FinQAEnv"])
def test_whole_episodes(stock: StockOpenEnv, seen: dict[str, Any], client: str) -> None:
    played = seen[client]
    assert played["reset"] == [0.0, False]
    assert played["tools"] == {
        "get_descriptions": ["company_name"],
        "get_table_info": ["company_name", "table_name"],
        "sql_query": ["company_name", "query", "table_name"],
        "submit_answer": ["answer"],
    }
    assert played["tool_descriptions"]
    assert json.loads(played["descriptions"]) == ["balance_sheet", "income_statement"]
    assert json.loads(played["table_info"])["title"] == "income_statement"
    assert played["query"] == ROW
    assert played["star"] == "Error: SELECT * is not allowed (too inefficient)"
    assert "Unknown tool" in played["unknown_tool"]
    assert "Missing required argument" in played["missing_argument"]
    assert played["step"] == {"reward": None, "done": False, "text": ROW, "error": None}
    assert played["step_unknown_tool"]["error"] == "tool_not_found"
    assert played["submit"] == {"reward": 1.0, "done": True, "text": None, "error": None}
    assert played["after_the_end"]["error"] == "execution_error"
    assert played["after_the_end"]["reward"] is None, "a second verdict"
    assert (played["second_wrong"]["reward"], played["second_wrong"]["done"]) == (0.0, True)
    assert (played["number"]["reward"], played["number"]["done"]) == (1.0, True)
    assert played["reset_without_options"] is False


@pytest.mark.parametrize("client", ["MCPToolClient", "FinQAEnv"])
def test_tools_and_steps_are_in_one_session(stock: StockOpenEnv, seen: dict[str, Any], client: str) -> None:
    played = seen[client]
    assert played["state"] == ["mine", 8], "six call_tool and two step"
    assert played["state_after_call_tool"] == 1
    # 0.10 calls tools over /mcp, which carries no reward: there as with upstream's server, submit by `step`.
    assert ("Answer submitted: ?" in played["submit_by_call_tool"]) == (stock.version == "0.10")


def test_the_synchronous_client(seen: dict[str, Any]) -> None:
    assert seen["sync"] == {"query": ROW, "reward": 1.0, "done": True}


def test_twenty_sessions_of_one_server(seen: dict[str, Any]) -> None:
    assert seen["side_by_side"] == [1.0] * 20
