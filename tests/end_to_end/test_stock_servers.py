"""Our client against a server with the ways of OpenEnv's own: it deals what it likes and has one session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fixtures.small_snapshot import build_small_snapshot, settings_for
from fixtures.stock_finqa_server import ARGUMENTS, PlainTools, StockServer
from pydantic import ValidationError

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.data.dataset import DataSet
from finqa_cli.errors import EnvironmentFault, SandboxError
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.pool import Pool
from finqa_cli.rollout.stream import play_all
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.types import PolicyVersion, Rewards, Snapshot, Status, Task, ToolCall, Trajectory
from finqa_cli.wiring.stage import stage
from finqa_plugins.environments.openenv_finqa.config import FinQAConfig
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Snapshot, DataSet]:
    home = tmp_path_factory.mktemp("stock")
    return home, *build_small_snapshot(home)


@pytest.fixture
async def stock(small: tuple[Path, Snapshot, DataSet]) -> AsyncIterator[StockServer]:
    dataset = small[2]
    questions = [
        {"id": question.id, "user_query": question.user_query, "company": question.company, "answer": question.answer}
        for question in dataset.questions
    ]
    async with StockServer(questions, PlainTools(dataset)).running() as server:
        yield server


def environment(snapshot: Snapshot, server: StockServer, **options: Any) -> FinQAEnvironment:
    return FinQAEnvironment(FinQAConfig(url=server.url, **options), EnvironmentContext(snapshot=snapshot))


def all_tasks(chosen: FinQAEnvironment) -> list[Task]:
    return [task for split in chosen.splits() for task in chosen.tasks(split)]


async def play(home: Path, url: str, *, concurrency: int, retries: int = 3) -> list[Trajectory]:
    chosen = settings_for(home, url=url, retries=retries)
    policy = PolicyVersion(number=0, model="")
    async with stage(chosen, policy, run_id="stock", reporter=NullReporter()) as parts:
        assert isinstance(parts.pool, Pool), "a running server needs no sandbox"
        tasks = [task for split in parts.environment.splits() for task in parts.environment.tasks(split)]
        attempts = [Attempt(id=f"t/{task.id}/0", task=task, member=0, seed=1) for task in tasks]
        player = parts.player(chosen, temperature=0.0)
        return await play_all(player, attempts, concurrency=concurrency, on_trajectory=lambda _: None)


def check_all_right(trajectories: Sequence[Trajectory], dataset: DataSet) -> None:
    assert len(trajectories) == len(dataset.questions)
    assert [(each.status, each.reward) for each in trajectories] == [(Status.COMPLETED, 1.0)] * len(trajectories)


@pytest.mark.parametrize("tells_id", [True, False])
async def test_whole_episodes_of_every_task(small: Any, stock: StockServer, tells_id: bool) -> None:
    home, _, dataset = small
    stock.tells_id = tells_id
    check_all_right(await play(home, stock.url, concurrency=1, retries=0), dataset)
    assert stock.resets > len(dataset.questions), "the server assigned the wanted question every time: nothing is shown"
    assert all(isinstance(answer, str) for answer in stock.answers)


async def test_the_model_sees_the_tools_as_the_server_describes_them(small: Any, stock: StockServer) -> None:
    chosen = environment(small[1], stock, tools="server")
    task = all_tasks(chosen)[0]
    assert chosen.opening(task) is None, "tools that the server has not told yet"
    session = await chosen.open(task, seed=1, sandbox=None)
    tools = session.prompt().tools
    assert [(tool.name, tool.description) for tool in tools] == [
        (name, f"The published text of {name}.") for name in ARGUMENTS
    ]
    assert tools[2].parameters["required"] == ["company_name", "table_name", "query"]
    assert chosen.opening(task) == session.prompt() != environment(small[1], stock).opening(task)
    await session.close()


async def test_a_full_server_is_tried_again(small: Any, stock: StockServer) -> None:
    home, _, dataset = small
    check_all_right(await play(home, stock.url, concurrency=2, retries=10), dataset)
    assert stock.refused, "the server always had a session free: nothing is shown"


async def test_no_free_session_is_a_sandbox_error(small: Any, stock: StockServer) -> None:
    chosen = environment(small[1], stock)
    task = all_tasks(chosen)[0]
    first = await chosen.open(task, seed=1, sandbox=None)
    for _ in range(3):
        with pytest.raises(SandboxError):
            await chosen.open(task, seed=1, sandbox=None)
    assert stock.refused == 3
    await first.close()


async def test_a_question_that_is_never_dealt_is_a_fault(small: Any, stock: StockServer) -> None:
    chosen = environment(small[1], stock)
    task = all_tasks(chosen)[0]
    stock.questions = [row for row in stock.questions if row["id"] != task.id]
    with pytest.raises(EnvironmentFault, match=r"did not yield .* in 24 resets"):
        await chosen.open(task, seed=1, sandbox=None)
    assert stock.resets == 24
    with pytest.raises(EnvironmentFault, match="in 3 resets"):
        await environment(small[1], stock, max_deals=3).open(task, seed=1, sandbox=None)


@pytest.mark.parametrize("column", ["user_query", "company"])
async def test_other_data_under_the_same_id_is_a_fault(small: Any, stock: StockServer, column: str) -> None:
    chosen = environment(small[1], stock)
    task = all_tasks(chosen)[0]
    stock.questions = [{**row, column: row[column] + "?"} for row in stock.questions]
    with pytest.raises(EnvironmentFault, match="another question with the id"):
        await chosen.open(task, seed=1, sandbox=None)


@pytest.mark.parametrize("answer", [0.5, 12, "0.5", True, None, [1], pytest.param(10**5000, id="long"), float("nan")])
async def test_any_answer_gets_a_verdict_or_an_error_to_read(small: Any, stock: StockServer, answer: object) -> None:
    chosen = environment(small[1], stock)
    session = await chosen.open(all_tasks(chosen)[0], seed=1, sandbox=None)
    observation = await session.step(ToolCall(name="submit_answer", arguments={"answer": answer}))
    assert observation.done != observation.is_error
    assert observation.done == bool(stock.answers)
    assert all(isinstance(sent, str) for sent in stock.answers)
    await session.close()


async def test_the_first_verdict_stands(small: Any, stock: StockServer) -> None:
    chosen = environment(small[1], stock)
    session = await chosen.open(all_tasks(chosen)[0], seed=1, sandbox=None)
    assert (await session.step(ToolCall(name="submit_answer", arguments={"answer": "no idea"}))).done
    again = await session.step(ToolCall(name="submit_answer", arguments={"answer": "better idea"}))
    assert (again.done, again.is_error) == (True, True)
    assert stock.answers == ["no idea"], "the server, which would have scored it again, was asked"
    parts = {"correct": 0.0, "exact": 0.0}
    assert await session.grade() == Rewards(total=0.0, components=parts, explanation="")
    await session.close()


async def test_the_truth_that_it_tells_goes_nowhere(small: Any, stock: StockServer) -> None:
    chosen = environment(small[1], stock)
    task = all_tasks(chosen)[0]
    stock.questions = [{**row, "answer": "CANARY-51"} for row in stock.questions]
    session = await chosen.open(task, seed=1, sandbox=None)
    ending = await session.step(ToolCall(name="submit_answer", arguments={"answer": "5"}))
    shown = f"{task} {session.prompt()} {ending} {await session.grade()} {vars(session)}"
    assert "CANARY" not in shown
    await session.close()


async def test_a_question_changed_under_way_is_a_fault(small: Any, stock: StockServer) -> None:
    """As when a proxy connects a session again: nothing says whose reward it would be."""
    chosen = environment(small[1], stock)
    session = await chosen.open(all_tasks(chosen)[0], seed=1, sandbox=None)
    await session._client.reset()
    assert (await session.step(ToolCall(name="submit_answer", arguments={"answer": "5"}))).done
    with pytest.raises(EnvironmentFault, match="ended question"):
        await session.grade()
    await session.close()


def test_an_address_is_an_address() -> None:
    for url in ("localhost:8000", "ftp://x", "http://"):
        with pytest.raises(ValidationError):
            FinQAConfig(url=url)


@pytest.mark.parametrize("option", [{"hints": True}, {"joins": True}, {"grader": "strict"}, {"session_timeout_s": 5}])
def test_options_of_our_server_are_refused_for_another_server(option: dict[str, Any]) -> None:
    FinQAConfig(**option)
    with pytest.raises(ValidationError, match="the server at this URL determines them"):
        FinQAConfig(url="http://127.0.0.1:1", **option)


async def test_no_session_is_left_behind(small: Any, stock: StockServer) -> None:
    chosen = environment(small[1], stock, max_deals=1)
    there, missing, *_ = all_tasks(chosen)
    stock.questions = [row for row in stock.questions if row["id"] == there.id]
    with pytest.raises(EnvironmentFault):
        await chosen.open(missing, seed=1, sandbox=None)
    while stock._open:  # noqa: ASYNC110  it learns of the end of a connection later
        await asyncio.sleep(0.01)
    session = await chosen.open(there, seed=1, sandbox=None)
    await session.close()
    assert stock.refused == 0
