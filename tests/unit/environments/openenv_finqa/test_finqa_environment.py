"""Tasks from the snapshot, and episodes against the real server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_sandboxes import FakeProvider, FakeSandbox
from fixtures.finqa_server import MAX_TURNS, RunningServer, finqa_server
from fixtures.tiny_snapshot import TASKS, write_tiny_snapshot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.errors import ConfigError, DataError, EnvironmentFault, SandboxError
from finqa_cli.types import Rewards, Task, ToolCall
from finqa_plugins.environments.openenv_finqa.config import FinQAConfig
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment, FinQASession
from finqa_plugins.environments.openenv_finqa.finqa_prompt import SYSTEM, TOOL_SPECS
from finqa_plugins.environments.openenv_finqa.snapshot_tasks import read_tasks

QUERY = {
    "company_name": "acme",
    "table_name": "income_statement",
    "query": "SELECT \"2024\" FROM income_statement WHERE line_item = 'total_revenues'",
}


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


async def opened(server: RunningServer, id_: str = "q1") -> FinQASession:
    environment = server.environment()
    task = next(task for split in environment.splits() for task in environment.tasks(split) if task.id == id_)
    return await environment.open(task, seed=1, sandbox=server)


def test_tasks_come_from_the_snapshot(tmp_path: Path) -> None:
    environment = FinQAEnvironment(None, EnvironmentContext(snapshot=write_tiny_snapshot(tmp_path)))
    assert environment.splits() == ("train", "dev", "test")
    assert [task.id for task in environment.tasks("train")] == ["q1", "q2"]
    assert environment.tasks("train")[0] == Task(
        id="q1", prompt=TASKS[0][2], split="train", cluster="acme", kind="lookup"
    )
    with pytest.raises(DataError, match=r"no split 'nope'; it has: train, dev, test"):
        environment.tasks("nope")


async def test_a_sandbox_out_of_reach_is_named_and_its_address_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = FinQAEnvironment(None, EnvironmentContext(snapshot=write_tiny_snapshot(tmp_path)))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        sandbox = FakeSandbox(FakeProvider(), 7)
        monkeypatch.setattr(sandbox, "url", lambda: f"http://127.0.0.1:{unused.getsockname()[1]}/SECRET")
        with pytest.raises(SandboxError, match="in sandbox sandbox7: ") as caught:
            await environment.open(environment.tasks("train")[0], seed=1, sandbox=sandbox)
    assert "SECRET" not in caught.value.message


def test_the_sandbox_ends_no_episode_before_we_do(tmp_path: Path) -> None:
    environment = FinQAEnvironment(None, EnvironmentContext(snapshot=write_tiny_snapshot(tmp_path), max_turns=7))
    assert environment.sandbox_spec().environment["FINQA_MAX_STEPS"] == "8"


GOOD = '{"id": "a", "company": "c", "user_query": "q", "split": "train"}'


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([GOOD, "{"], "line 2: not JSON"),
        (["[]"], "line 1: not a JSON object"),
        ([GOOD, GOOD], "line 2: id 'a' appears twice"),
        ([GOOD.replace('"q"', "5")], "line 1, field 'user_query'"),
        ([GOOD.replace('"a"', '""')], "line 1, field 'id'"),
        ([GOOD, ""], "line 2: not JSON"),
        (["[" * 100_000], "line 1: not JSON"),
    ],
)
def test_damaged_tasks_name_line_and_field(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_tasks(path, "mine")
    assert message in caught.value.message
    assert str(path) in caught.value.message


def test_a_question_may_hold_any_character(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(GOOD.replace('"q"', '"q\u2028\u0085q"') + "\n", encoding="utf-8")
    assert [task.prompt for task in read_tasks(path, "mine")] == ["q\u2028\u0085q"]


def test_a_missing_or_binary_task_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Cannot read"):
        read_tasks(tmp_path / "tasks.jsonl", "mine")
    (tmp_path / "tasks.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="Cannot read"):
        read_tasks(tmp_path / "tasks.jsonl", "mine")


async def test_our_own_server_lists_the_tools_that_our_prompt_has(server: RunningServer) -> None:
    context = EnvironmentContext(snapshot=server.snapshot)
    environment = FinQAEnvironment(FinQAConfig(tools="server"), context)
    session = await environment.open(environment.tasks("train")[0], seed=1, sandbox=server)
    assert [tool.as_function() for tool in session.prompt().tools] == [tool.as_function() for tool in TOOL_SPECS]
    await session.close()


def test_the_prompt_is_short() -> None:
    assert len(SYSTEM.split()) <= 90


async def test_an_episode(server: RunningServer) -> None:
    session = await opened(server)
    prompt = session.prompt()
    assert prompt.messages[1].content == f"Company: acme\nQuestion: {TASKS[0][2]}"
    assert [tool.name for tool in prompt.tools] == ["get_descriptions", "get_table_info", "sql_query", "submit_answer"]
    assert (await session.step(call("sql_query", **QUERY))).text == '[{"2024":6118}]'
    ending = await session.step(call("submit_answer", answer="6118"))
    assert (ending.text, ending.done, ending.is_error) == ("Answer submitted: 6118", True, False)
    parts = {"correct": 1.0, "exact": 1.0}
    assert await session.grade() == Rewards(total=1.0, components=parts, explanation="'6118' matches.")
    again = await session.step(call("submit_answer", answer="5"))
    assert (again.done, again.is_error) == (True, True)
    assert (await session.grade()).total == 1.0
    await session.close()
    await session.close()


async def test_no_answer_is_worth_nothing(server: RunningServer) -> None:
    session = await opened(server)
    await session.step(call("sql_query", **QUERY))
    await session.close()
    parts = {"correct": 0.0, "exact": 0.0}
    assert await session.grade() == Rewards(total=0.0, components=parts, explanation="no answer submitted")


@pytest.mark.parametrize(("answer", "exact"), [(" 6118\n", 1.0), ("6,118", 0.0), ("6118.0", 0.0), (6118, 1.0)])
async def test_what_is_right_need_not_be_exact(server: RunningServer, answer: object, exact: float) -> None:
    session = await opened(server)
    await session.step(call("submit_answer", answer=answer))
    rewards = await session.grade()
    assert (rewards.total, dict(rewards.components)) == (1.0, {"correct": 1.0, "exact": exact})
    await session.close()


async def test_our_turn_limit_comes_first(server: RunningServer) -> None:
    session = await opened(server)
    for _ in range(MAX_TURNS):
        assert not (await session.step(call("get_descriptions", company_name="acme"))).done
    over = await session.step(call("get_descriptions", company_name="acme"))
    assert (over.done, over.text) == (True, "The episode is over: the step limit is reached.")
    assert (await session.grade()).total == 0.0
    await session.close()


@pytest.mark.parametrize(
    "mistake",
    [
        call("nope"),
        call(""),
        call("x" * 10_000),
        call("\ud800"),
        call("sql_query"),
        call("sql_query", **{**QUERY, "query": "SELECT * FROM income_statement"}),
        call("sql_query", **{**QUERY, "query": "SELECT a\x00 WHERE 1"}),
        call("sql_query", **{**QUERY, "query": "x" * 200_000}),
        call("sql_query", **{**QUERY, "query": "x" * 2_000_000}),
        call("sql_query", **{**QUERY, "query": None}),
        call("get_descriptions", company_name={"a": [1]}),
        call("get_descriptions", company_name="\ud800"),
        call("get_descriptions", company_name="initech"),
        call("get_descriptions", company_name={1, 2}),
        call("submit_answer"),
        call("submit_answer", answer=None),
        call("submit_answer", answer="9" * 5000),
        call("submit_answer", answer=10**5000),
        ToolCall(name="sql_query", arguments={1: 2}),  # type: ignore[dict-item]
    ],
)
async def test_mistakes_are_answered_and_played_on(server: RunningServer, mistake: ToolCall) -> None:
    session = await opened(server)
    observation = await session.step(mistake)
    assert observation.is_error
    assert not observation.done
    assert observation.text.startswith("Error")
    assert len(observation.text) < 500
    assert (await session.step(call("submit_answer", answer="6118"))).done
    assert (await session.grade()).total == 1.0
    await session.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["get_descriptions", "get_table_info", "sql_query"]) | st.text(max_size=20)
KEYS = st.sampled_from(["company_name", "table_name", "query", "answer"]) | st.text(max_size=10)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(NAMES, st.dictionaries(KEYS, JSON, max_size=4)), min_size=1, max_size=10))
def test_any_call_gets_an_observation(server: RunningServer, calls: list[tuple[str, dict[str, Any]]]) -> None:
    async def play() -> None:
        session = await opened(server)
        for name, arguments in calls:
            assert (await session.step(ToolCall(name=name, arguments=arguments))).text
        assert (await session.step(call("submit_answer", answer="6118"))).done
        assert (await session.grade()).total == 1.0
        await session.close()

    asyncio.run(play())


async def test_an_unknown_task_is_an_environment_fault(server: RunningServer) -> None:
    task = Task(id="nope", prompt="?", split="train", cluster="acme")
    with pytest.raises(EnvironmentFault, match="Unknown question_id 'nope'"):
        await server.environment().open(task, seed=1, sandbox=server)


async def test_a_sandbox_is_needed(server: RunningServer) -> None:
    environment = server.environment()
    with pytest.raises(ConfigError, match="sandbox"):
        await environment.open(environment.tasks("train")[0], seed=1, sandbox=None)


async def test_a_cancelled_step_loses_the_session_and_no_other(server: RunningServer) -> None:
    session, other = await opened(server), await opened(server)
    slow = "SELECT count(1) FROM " + ", ".join(f"income_statement t{i}" for i in range(20)) + " WHERE 1"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await session.step(call("sql_query", **{**QUERY, "query": slow}))
    with pytest.raises(SandboxError):
        await session.step(call("sql_query", **QUERY))
    assert (await session.grade()).explanation == "no answer submitted"
    assert (await other.step(call("sql_query", **QUERY))).text == '[{"2024":6118}]'
    await session.close()
    await other.close()


def test_a_server_killed_in_mid_episode_is_a_sandbox_error(tmp_path: Path) -> None:
    async def play(server: RunningServer) -> None:
        session = await opened(server)
        await session.step(call("sql_query", **QUERY))
        os.kill(server.process.pid, signal.SIGKILL)
        with pytest.raises(SandboxError):
            await session.step(call("sql_query", **QUERY))
        assert not await server.healthy()
        with pytest.raises(SandboxError, match="Cannot connect"):
            await opened(server)
        await session.close()

    with finqa_server(tmp_path) as server:
        asyncio.run(play(server))


def test_task_texts_hold_no_truth(tmp_path: Path) -> None:
    snapshot = write_tiny_snapshot(tmp_path)
    rows = [json.loads(line) for line in (snapshot.path / "tasks.jsonl").read_text().splitlines()]
    assert all("answer" not in row for row in rows)
