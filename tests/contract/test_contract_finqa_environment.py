from __future__ import annotations

from collections.abc import Iterator

import pytest
from fixtures.finqa_server import RunningServer, finqa_server

from finqa_cli.types import ToolCall
from finqa_testing.contract import environment_suite

ARGUMENTS = {"company_name": "acme", "table_name": "income_statement"}
CALLS = [
    ToolCall(name="get_descriptions", arguments={"company_name": "acme"}),
    ToolCall(name="get_table_info", arguments=ARGUMENTS),
    ToolCall(name="sql_query", arguments={**ARGUMENTS, "query": "SELECT nope FROM income_statement WHERE 1"}),
    ToolCall(name="sql_query", arguments={**ARGUMENTS, "query": 'SELECT "2024" FROM income_statement WHERE 1'}),
    ToolCall(name="submit_answer", arguments={"answer": "6118"}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with finqa_server(tmp_path_factory.mktemp("contract")) as running:
        yield running


async def test_finqa(server: RunningServer) -> None:
    environment = server.environment()
    environment_suite.check_tasks(environment)
    await environment_suite.check_an_episode_without_answer(environment, server)
    await environment_suite.check_episodes_repeat(environment, server, CALLS)
    await environment_suite.check_a_finished_episode_is_over(environment, server, CALLS)
