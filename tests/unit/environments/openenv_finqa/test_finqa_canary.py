"""No byte that an agent or a client can reach holds a truth: each truth here is a word that is found nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fixtures.finqa_server import RunningServer
from fixtures.hostile_sql import ATTACKS
from fixtures.tiny_snapshot import TABLES, TASKS, write_tiny_snapshot
from websockets.asyncio.client import connect

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.types import Snapshot
from finqa_plugins.environments.openenv_finqa.config import FinQAConfig
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.sandboxes.local.server_process import ServerProcess

CANARIES = {task[0]: f"CANARY{number}TRUTH" for number, task in enumerate(TASKS)}
PATHS = (
    "/health",
    "/metadata",
    "/schema",
    "/state",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/",
    "/ws",
    "/mcp",
    "/web",
    "/truth",
)


@pytest.fixture(scope="module")
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with every option that could tell more than the default."""
    folder = tmp_path_factory.mktemp("canaries")
    written = write_tiny_snapshot(folder / "snapshot")
    lines = [json.dumps({"id": id_, "answer": word, "explanation": word}) for id_, word in CANARIES.items()]
    (written.path / "truth.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    manifest = json.loads((written.path / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"]["truth.jsonl"] = hashlib.sha256((written.path / "truth.jsonl").read_bytes()).hexdigest()
    (written.path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    snapshot = Snapshot(name="canaries", digest=written.digest, path=written.path, metadata=manifest)
    context = EnvironmentContext(snapshot=snapshot, max_turns=1000)
    spec = FinQAEnvironment(FinQAConfig(hints=True, joins=True), context).sandbox_spec()
    assert spec is not None
    process = ServerProcess(spec, folder / "server.log")
    try:
        asyncio.run(process.wait_until_healthy(60.0))
        yield RunningServer(process, snapshot, folder / "server.log")
    finally:
        asyncio.run(process.stop(3.0))


class Listener:
    """One websocket; keeps every byte that comes back."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.heard = ""

    async def send(self, frame: object) -> dict[str, Any]:
        await self._socket.send(json.dumps(frame))
        reply = str(await asyncio.wait_for(self._socket.recv(), 30))
        self.heard += reply
        frame_back: dict[str, Any] = json.loads(reply)
        return frame_back

    async def call(self, tool: str, **arguments: object) -> dict[str, Any]:
        data = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
        return await self.send({"type": "step", "data": data})

    async def rpc(self, method: str, **params: object) -> dict[str, Any]:
        return await self.send({"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}})


@contextlib.asynccontextmanager
async def listener(server: RunningServer, path: str = "/ws") -> AsyncIterator[Listener]:
    async with connect(f"ws://127.0.0.1:{server.process.port}{path}", max_size=2**22) as socket:
        yield Listener(socket)


async def everything_an_agent_can_ask(socket: Listener) -> None:
    """All tools with right and wrong arguments, all tables, the schema, and quick attacks."""
    for company in ("acme", "globex", "..", "", "truth"):
        await socket.call("get_descriptions", company_name=company)
        for table in ("income_statement", "balance_sheet", "../truth", "truth.jsonl", "catalog"):
            names = {"company_name": company, "table_name": table}
            await socket.call("get_table_info", **names)
            for query in (
                f'SELECT line_item, "2024" FROM "{table}" WHERE 1',
                "SELECT name, sql FROM sqlite_master WHERE 1",
                f"SELECT answer FROM {table} WHERE answer IS NOT NULL",
                f"SELECT 2024, nope FROM {table}",
            ):
                await socket.call("sql_query", **names, query=query)
    for query in ATTACKS.values():
        if len(query) < 130:
            await socket.call("sql_query", company_name="acme", table_name="income_statement", query=query)
    await socket.call("nope", x=1)
    await socket.call("submit_answer")
    await socket.rpc("tools/list")
    await socket.rpc("tools/call", name="get_descriptions", arguments={"company_name": "acme"})
    await socket.rpc("resources/list")
    await socket.send({"type": "step", "data": {"type": "list_tools"}})
    await socket.send({"type": "nope"})
    await socket.send({"type": "state"})


async def everything_over_http(server: RunningServer) -> str:
    """Bodies and headers of every path, with GET and POST."""
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    submit = {"type": "call_tool", "tool_name": "submit_answer", "arguments": {"answer": "x"}}
    heard = ""
    async with httpx.AsyncClient(base_url=server.url()) as http:
        for path in PATHS:
            for reply in (await http.get(path), await http.post(path, json={})):
                heard += reply.text + str(reply.headers)
        for question in (*CANARIES, "nope", 5):
            heard += (await http.post("/reset", json={"question_id": question, "seed": 1})).text
        heard += (await http.post("/step", json={"action": submit})).text
        heard += (await http.post("/mcp", json=rpc)).text
        heard += (await http.post("/mcp", content=b"{")).text
    return heard


def what_the_process_shows(server: RunningServer) -> str:
    """Its logs, environment and command line; the log stands for both of its outputs."""
    process = Path("/proc", str(server.process.pid))
    public = [process / "environ", process / "cmdline", server.log]
    children = (process / "task").glob("*/children")
    for child in {pid for path in children for pid in path.read_text(encoding="utf-8").split()}:
        public += [Path("/proc", child, "environ"), Path("/proc", child, "cmdline")]
    return "".join(path.read_bytes().decode("utf-8", "replace") for path in public)


def public_files(server: RunningServer) -> str:
    """The files of the snapshot that a query or a prompt is made from."""
    folder = server.snapshot.path
    return "".join(
        (folder / name).read_bytes().decode("latin-1") for name in ("tables.sqlite", "tasks.jsonl", "manifest.json")
    )


async def test_no_truth_in_any_byte(canaries: RunningServer) -> None:
    async with listener(canaries) as socket, listener(canaries, "/mcp") as mcp:
        for number, id_ in enumerate(CANARIES):
            await socket.send({"type": "reset", "data": {"question_id": id_, "seed": number}})
            await socket.send({"type": "state"})
        await everything_an_agent_can_ask(socket)
        for method in ("tools/list", "openenv/session/create", "nope"):
            await mcp.send({"jsonrpc": "2.0", "id": 1, "method": method, "params": {}})
        heard = socket.heard + mcp.heard + await everything_over_http(canaries)
        heard += what_the_process_shows(canaries) + public_files(canaries)
        assert len(heard) > 50_000  # it did listen
        assert "total_revenues" in heard
        assert "CANARY" not in heard

        submitted = await socket.call("submit_answer", answer="wrong")
        assert (submitted["data"]["done"], submitted["data"]["reward"]) == (True, 0.0)
        state = (await socket.send({"type": "state"}))["data"]
        assert (state["done"], state["reward"], state["question_id"]) == (True, 0.0, "q5")
        for _ in range(2):
            again = await socket.call("submit_answer", answer=CANARIES["q5"])
            assert again["data"]["reward"] is None
            assert again["data"]["observation"]["error"]["error_type"] == "execution_error"
        assert (await socket.send({"type": "state"}))["data"]["reward"] == 0.0
        await socket.rpc("tools/call", name="submit_answer", arguments={"answer": "x"})
        assert "CANARY" not in socket.heard + what_the_process_shows(canaries)


async def test_the_canaries_are_the_truth(canaries: RunningServer) -> None:
    """Or the test above would show nothing."""
    async with listener(canaries) as socket:
        for id_, word in CANARIES.items():
            await socket.send({"type": "reset", "data": {"question_id": id_}})
            assert (await socket.call("submit_answer", answer=word))["data"]["reward"] == 1.0
            assert (await socket.send({"type": "state"}))["data"]["reward"] == 1.0
    assert len({table for _, table in TABLES}) > 1
