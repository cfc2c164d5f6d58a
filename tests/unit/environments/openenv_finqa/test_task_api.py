"""The Task API of OpenEnv 0.10: splits and tasks without answers, and episodes that begin with one of them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fixtures.finqa_server import RunningServer
from fixtures.tiny_snapshot import CANARY, TASKS
from websockets.asyncio.client import connect

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.types import ToolCall
from finqa_plugins.environments.openenv.config import OpenEnvConfig
from finqa_plugins.environments.openenv.openenv_doctor import checks
from finqa_plugins.environments.openenv.openenv_environment import OpenEnvEnvironment
from finqa_plugins.environments.openenv_finqa.server.openenv_names import HAS_TASKS

pytestmark = pytest.mark.skipif(not HAS_TASKS, reason="openenv-core 0.3 has no Task API")

ANSWERS = [task[5] for task in TASKS if len(task[5]) > 3]


async def ask(server: RunningServer, path: str, **body: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url()) as http:
        return await (http.post(f"/finqa_env/{path}", json=body) if body else http.get(f"/finqa_env/{path}"))


async def reset(server: RunningServer, **options: object) -> dict[str, Any]:
    """Return the state after a reset, or the error."""
    async with connect(f"ws://127.0.0.1:{server.process.port}/ws") as socket:
        await socket.send(json.dumps({"type": "reset", "data": options}))
        reply = json.loads(await socket.recv())
        if reply["type"] == "error":
            return {"error": reply["data"]["message"]}
        await socket.send(json.dumps({"type": "state"}))
        state: dict[str, Any] = json.loads(await socket.recv())["data"]
        return state


async def test_a_client_finds_every_question_that_finqa_asks_and_no_answer(server: RunningServer) -> None:
    async with httpx.AsyncClient(base_url=server.url()) as http:
        assert (await http.get("/list_environments")).json() == ["finqa_env"]
    splits = (await ask(server, "splits")).json()
    assert splits == [
        {"name": "train", "type": "train"},
        {"name": "dev", "type": "validation"},
        {"name": "test", "type": "test"},
    ]
    environment = server.environment()
    assert [split["name"] for split in splits] == list(environment.splits())
    received = ""
    for split in environment.splits():
        wanted = [task.id for task in environment.tasks(split)]
        count = (await ask(server, "num_tasks", split=split)).json()["num_tasks"]
        replies = [await ask(server, "tasks", split=split), await ask(server, "task_range", split=split, start=0)]
        one = await ask(server, "task", split=split, index=count - 1)
        assert [[task["id"] for task in reply.json()["tasks"]] for reply in replies] == [wanted] * 2
        assert count == len(wanted) and one.json()["task"]["id"] == wanted[-1]
        for index, id_ in enumerate(wanted):
            assert (await reset(server, split=split, index=index))["question_id"] == id_
            assert (await reset(server, task_id=id_))["question_id"] == id_
        received += "".join(reply.text for reply in (*replies, one))
    assert CANARY not in received and not [answer for answer in ANSWERS if answer in received]
    assert {"id", "index", "question", "company", "type"} == set(one.json()["task"])


def test_the_checks_of_openenv_find_nothing_wrong_with_the_server(server: RunningServer) -> None:
    options = {"url": server.url()}
    assert not checks({"environment": {"name": "openenv", "options": options}, "sandbox": {"name": "local"}})


async def test_the_generic_environment_plays_them(server: RunningServer) -> None:
    context = EnvironmentContext(snapshot=None)
    environment = OpenEnvEnvironment(OpenEnvConfig(url=server.url()), context)
    assert list(environment.splits()) == ["train", "dev", "test"], "the names of finqa, by the types of the server"
    task = environment.tasks("test")[1]
    session = await environment.open(task, seed=0, sandbox=None)
    assert {tool.name for tool in session.prompt().tools} >= {"sql_query", "submit_answer"}
    assert (await session.step(ToolCall(name="submit_answer", arguments={"answer": "Yes"}))).done
    assert (task.id, (await session.grade()).total) == ("test_00001", 1.0), "the answer of q5"
    await session.close()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("tasks", {"split": "nope"}, 400),
        ("num_tasks", {"split": 7}, 422),
        ("task", {"split": "dev", "index": 1}, 400),
        ("task", {"split": "dev", "index": -1}, 400),
        ("task_range", {"split": "dev", "start": "x"}, 422),
    ],
)
async def test_wrong_requests_are_refused(server: RunningServer, path: str, body: dict[str, Any], status: int) -> None:
    refused = await ask(server, path, **body)
    assert refused.status_code == status and len(refused.text) < 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev", "index": 1}, "has the tasks 0 to 0"),
        ({"split": "dev", "index": -1}, "has the tasks 0 to 0"),
        ({"split": "dev", "index": True}, "index must be an integer"),
        ({"index": 0}, "Unknown split"),
        ({"split": "x" * 5000, "index": 0}, "Unknown split"),
        ({"task_id": "nope"}, "Unknown task_id"),
        ({"task_id": "q1", "question_id": "q2"}, "different questions"),
        ({"task_id": "q1", "split": "dev", "index": 0}, "different questions"),
    ],
)
async def test_a_reset_of_no_task_says_why(server: RunningServer, options: dict[str, Any], message: str) -> None:
    error = (await reset(server, **options))["error"]
    assert message in error and len(error) <= 300
