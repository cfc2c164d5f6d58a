"""A server with a token: only clients with it play, from every origin, and it is shown to no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fixtures.finqa_server import RunningServer, finqa_server

from finqa_cli.contracts import Environment, EnvironmentContext
from finqa_cli.errors import AuthenticationError, SandboxError
from finqa_cli.types import ToolCall
from finqa_plugins.environments._openenv.openenv_client import OpenEnvClient
from finqa_plugins.environments._openenv.server_facts import read_facts
from finqa_plugins.environments._openenv.server_token import read_token
from finqa_plugins.environments.openenv.config import OpenEnvConfig
from finqa_plugins.environments.openenv.openenv_environment import OpenEnvEnvironment
from finqa_plugins.environments.openenv_finqa.config import FinQAConfig
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.environments.openenv_finqa.server.openenv_names import HAS_TASKS

TOKEN = "correct-horse-battery-staple"
CANARY = "wrong-horse-battery-staple"
VARIABLE = "SERVER_TOKEN"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with finqa_server(tmp_path_factory.mktemp("closed"), {"FINQA_TOKEN": TOKEN}) as running:
        yield running


def environment(closed: RunningServer) -> FinQAEnvironment:
    config = FinQAConfig(url=closed.url(), token_env=VARIABLE)
    return FinQAEnvironment(config, EnvironmentContext(snapshot=closed.snapshot))


async def test_who_has_the_token_plays(closed: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{TOKEN}\n")
    finqa = environment(closed)
    await finqa.check_ready()
    task = next(each for each in finqa.tasks("train") if each.id == "q1")
    session = await finqa.open(task, seed=0, sandbox=None)
    assert (await session.step(ToolCall(name="submit_answer", arguments={"answer": "6118"}))).done
    assert (await session.grade()).total == 1.0
    await session.close()


async def test_the_general_environment_sends_it_too(closed: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    config = OpenEnvConfig(url=closed.url(), token_env=VARIABLE, tasks=3)
    general = OpenEnvEnvironment(config, EnvironmentContext(snapshot=None))
    await general.check_ready()
    task = general.tasks(general.splits()[0])[0]
    session = await general.open(task, seed=0, sandbox=None)
    assert [tool.name for tool in session.prompt().tools][-1] == "submit_answer"
    await session.close()


@pytest.mark.parametrize(
    ("value", "message", "remedy"),
    [
        (None, f"the variable {VARIABLE} is not set", f"export {VARIABLE}=..."),
        ("", f"the variable {VARIABLE} is not set", f"export {VARIABLE}=..."),
        ("two words", "does not contain a token", f"export {VARIABLE}=..."),
        (CANARY, "rejected the token (HTTP 401)", "environment.options.token_env"),
    ],
)
async def test_a_missing_or_wrong_token_is_named_before_anything_starts(
    closed: RunningServer, monkeypatch: pytest.MonkeyPatch, value: str | None, message: str, remedy: str
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(AuthenticationError) as caught:
        await environment(closed).check_ready()
    assert message in caught.value.message and remedy in caught.value.remedy
    assert CANARY not in caught.value.message + caught.value.remedy


@pytest.mark.parametrize(("kind", "tasks"), [("finqa", "auto"), ("openenv", "auto"), ("openenv", 10)])
async def test_a_server_that_needs_one_says_how_to_give_it(closed: RunningServer, kind: str, tasks: Any) -> None:
    with pytest.raises(AuthenticationError, match="needs a token") as caught:
        asked: Environment = FinQAEnvironment(
            FinQAConfig(url=closed.url()), EnvironmentContext(snapshot=closed.snapshot)
        )
        if kind == "openenv":
            asked = OpenEnvEnvironment(
                OpenEnvConfig(url=closed.url(), tasks=tasks), EnvironmentContext(snapshot=None)
            )  # asks for the list of tasks
        await asked.check_ready()
    assert caught.value.remedy == "export SERVER_TOKEN=... and --set environment.options.token_env=SERVER_TOKEN"


def test_tasks_are_listed_with_it(closed: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    config = OpenEnvConfig(url=closed.url(), token_env=VARIABLE)
    listed = OpenEnvEnvironment(config, EnvironmentContext(snapshot=None)).tasks("test")
    assert listed[0].id.startswith("test_" if HAS_TASKS else "seed_")


@pytest.mark.parametrize("token", ["", CANARY])
async def test_a_session_is_not_opened_without_it(closed: RunningServer, token: str) -> None:
    with pytest.raises(AuthenticationError, match="401") as caught:
        await OpenEnvClient(closed.url(), token=token).connect()
    assert CANARY not in str(caught.value)
    with pytest.raises(SandboxError, match="401"):  # a sandbox whose address has expired is a fault like others
        await OpenEnvClient(closed.url(), token=token, sandbox="sandbox-1").connect()


async def test_over_http(closed: RunningServer) -> None:
    async with httpx.AsyncClient(base_url=closed.url()) as http:
        assert (await http.get("/health")).status_code == 200
        for headers in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": "Bearer x"},
        ):
            refused = await http.get("/metadata", headers=headers)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        bearer = {"Authorization": f"Bearer {TOKEN}", "Host": "gpu-host.example", "Origin": "https://app.example"}
        assert (await http.get("/metadata", headers=bearer)).status_code == 200, "no page of another site has it"


def test_nobody_else_learns_it(closed: RunningServer) -> None:
    assert TOKEN not in Path(f"/proc/{closed.process.pid}/cmdline").read_text()
    assert closed.log.read_text() == ""


@asynccontextmanager
async def redirecting() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that sends all requests to another port of its own, and what arrived there."""
    stolen: list[bytes] = []

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:{port}/\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async def steal(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stolen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    first = await asyncio.start_server(redirect, "127.0.0.1", 0)
    second = await asyncio.start_server(steal, "127.0.0.1", 0)
    port = second.sockets[0].getsockname()[1]
    async with first, second:
        yield f"http://127.0.0.1:{first.sockets[0].getsockname()[1]}", stolen


async def test_a_redirection_does_not_get_it() -> None:
    async with redirecting() as (url, stolen):
        with pytest.raises(SandboxError, match="307"):
            await OpenEnvClient(url, token=CANARY).connect()
        assert stolen == []
        await read_facts(url, token=CANARY)
        assert len(stolen) == 2
        assert not any(CANARY.encode() in head for head in stolen)


def test_the_option_names_a_variable_of_a_running_server() -> None:
    assert read_token("") == ""
    for config in (FinQAConfig, OpenEnvConfig):
        with pytest.raises(ValueError, match="token_env applies to a running server: set url too"):
            config.model_validate({"token_env": VARIABLE})
        with pytest.raises(ValueError, match="token_env"):
            config.model_validate({"url": "http://127.0.0.1:1", "token_env": f"{TOKEN} "})
