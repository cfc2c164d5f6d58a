"""The environment `openenv` against real servers of OpenEnv: a folder with typed actions, and echo by MCP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from finqa_cli.app import main
from finqa_cli.contracts import EnvironmentContext, Session
from finqa_cli.errors import ConfigError, DataError, EnvironmentFault, SandboxError
from finqa_cli.extend import registry
from finqa_cli.types import ToolCall
from finqa_plugins.environments.openenv.openenv_environment import OpenEnvEnvironment
from finqa_plugins.environments.openenv.server_source import SERVE

pytestmark = pytest.mark.thorough

FIXTURES = Path(__file__).parents[1] / "fixtures"
GUESS = FIXTURES / "openenv_guess"
ECHO = '''
from fastmcp import FastMCP
from openenv.core.env_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State

class EchoEnvironment(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("echo")

        @mcp.tool
        def echo(message: str, times: int = 1) -> dict:
            """Repeat a message."""
            return {"said": message * times}

        @mcp.tool
        def fail() -> str:
            """Always fails."""
            raise ValueError("no luck")

        super().__init__(mcp)

    def reset(self, seed=None, episode_id=None, **options):
        return Observation(done=False, reward=0.0)

    def _step_impl(self, action, timeout_s=None, **options):
        return Observation(done=False, reward=0.0)

    @property
    def state(self):
        return State(episode_id="echo", step_count=0)

app = create_app(EchoEnvironment, CallToolAction, CallToolObservation, env_name="echo", max_concurrent_envs=8)
'''


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of both servers, started side by side."""
    folder = tmp_path_factory.mktemp("echo")
    (folder / "echo_app.py").write_text(ECHO)
    running: list[subprocess.Popen[bytes]] = []
    addresses: dict[str, str] = {}
    path = os.pathsep.join((str(folder), str(FIXTURES)))
    try:
        apps = {
            "guess": "openenv_guess.server.app:app",
            "listed": "openenv_listed.server.app:app",
            "echo": "echo_app:app",
        }
        for name, app in apps.items():
            with socket.create_server(("127.0.0.1", 0)) as listening:
                command = [sys.executable, str(SERVE), path, app, "--fd", str(listening.fileno())]
                running.append(
                    subprocess.Popen(
                        [*command, "--log-level", "error"],
                        env=os.environ,
                        pass_fds=(listening.fileno(),),
                    )
                )
                addresses[name] = f"http://127.0.0.1:{listening.getsockname()[1]}"
        for address in addresses.values():
            with urllib.request.urlopen(f"{address}/health", timeout=240) as reply:
                assert reply.status == 200
        yield addresses
    finally:
        for process in running:
            process.kill()
            process.wait()


def environment_at(address: str, data: Path | None = None, **options: object) -> OpenEnvEnvironment:
    context = EnvironmentContext(snapshot=None, data=data)
    environment: OpenEnvEnvironment = registry().create("environment", "openenv", {"url": address, **options}, context)
    return environment


def guess(number: object) -> ToolCall:
    return ToolCall(name="guess", arguments={"number": number})


async def test_typed_actions_are_one_tool_and_rewards_are_summed(servers: dict[str, str]) -> None:
    environment = environment_at(servers["guess"], tasks=10, discount=0.5, solved_at=0.2)
    await environment.check_ready()
    task = next(task for split in environment.splits() for task in environment.tasks(split) if task.id == "seed_0004")
    session = await environment.open(task, seed=0, sandbox=None)
    assert isinstance(session, Session) and not session.takes_text
    prompt = session.prompt()
    told = [message.content for message in prompt.messages]
    assert told == ["You act in the environment GuessEnvironment.", "hint: Guess.\nguesses: 0"]
    (tool,) = prompt.tools
    assert (tool.name, tool.description) == ("guess", "Guess the number.")
    assert tool.parameters == {
        "type": "object",
        "properties": {"number": {"type": "integer", "description": "From 0 to 9"}},
        "required": ["number"],
    }
    replies = [await session.step(guess(number)) for number in (9, "many", 77, 4)]
    assert [reply.text for reply in replies] == [
        "hint: less\nguesses: 1",
        "Error: Invalid message: number: Input should be a valid integer, unable to parse string as an integer",
        "Error: 77 is not from 0 to 9",
        "3",
    ]
    assert [reply.is_error for reply in replies] == [False, True, True, False]
    assert [reply.done for reply in replies] == [False, False, False, True]
    rewards = await session.grade()
    assert (rewards.total, dict(rewards.components)) == (-0.5 + 0.5, {"correct": 0.0})
    assert (await session.step(guess(4))).is_error
    await session.close()


async def test_a_server_with_one_session_is_waited_for(servers: dict[str, str]) -> None:
    environment = environment_at(servers["guess"], tasks=10)
    first, second = environment.tasks("train")[:2]
    session = await environment.open(first, seed=0, sandbox=None)
    with pytest.raises(SandboxError, match="CAPACITY_REACHED"):
        await environment_at(servers["guess"], connect_timeout_s=0.2).open(second, seed=0, sandbox=None)
    await session.close()
    other = await environment.open(second, seed=0, sandbox=None)
    await other.close()


async def test_an_exception_of_the_environment_can_be_a_fault(servers: dict[str, str]) -> None:
    environment = environment_at(servers["guess"], tool_exceptions="fault")
    session = await environment.open(environment.tasks("train")[0], seed=0, sandbox=None)
    with pytest.raises(EnvironmentFault, match=r"EXECUTION_ERROR.*77 is not from 0 to 9"):
        await session.step(guess(77))
    await session.close()


async def test_rows_of_a_file_are_the_arguments_of_resets(servers: dict[str, str], tmp_path: Path) -> None:
    rows = [{"seed": 3, "offset": 4, "id": "a", "split": "dev", "prompt": "Find it."}, {"seed": 1, "split": "train"}]
    file = tmp_path / "resets.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    environment = environment_at(servers["guess"], file, fields=["hint"])
    assert list(environment.splits()) == ["train", "dev"]
    (task,) = environment.tasks("dev")
    session = await environment.open(task, seed=0, sandbox=None)
    assert session.prompt().messages[-1].content == "Find it.\n\nGuess."
    assert (await session.step(guess(7))).done
    await session.close()
    file.write_text("no JSON")
    with pytest.raises(DataError, match="has no tasks"):
        environment_at(servers["guess"], file)


async def test_the_tasks_that_a_server_lists_are_its_tasks(servers: dict[str, str]) -> None:
    context = EnvironmentContext(snapshot=None)
    options = {"module": str(FIXTURES / "openenv_listed"), "tasks": "server"}  # its server runs while it is asked
    environment: OpenEnvEnvironment = registry().create("environment", "openenv", options, context)
    assert {split: len(environment.tasks(split)) for split in environment.splits()} == {"train": 3, "dev": 1, "test": 2}
    assert [task.id for task in environment.tasks("test")] == ["hard_00000", "hard_00001"]
    found = registry().create("environment", "openenv", {"module": options["module"]}, context)
    assert [task.id for task in found.tasks("test")] == ["hard_00000", "hard_00001"], "its files name the Task API"
    assert [task.id for task in environment_at(servers["guess"]).tasks("train")][:1] == ["seed_0000"]
    assert len(environment_at(servers["listed"]).tasks("train")) == 3
    with pytest.raises(ConfigError, match="has no list of tasks"):
        environment_at(servers["guess"], tasks="server")
    with pytest.raises(SandboxError, match="cannot be reached"):
        environment_at("http://127.0.0.1:9", tasks="server")
    with pytest.raises(ConfigError, match="not known before it runs"):
        registry().create("environment", "openenv", {"image": "x", "tasks": "server"}, context)


def test_tasks_of_a_server_are_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = [
        "--set",
        f"environment.options.module={FIXTURES / 'openenv_listed'}",
        "--set=environment.options.tasks=server",
    ]
    play = ["eval", "random", "--environment=openenv", *where, "--sandboxes=1", "--split=test", "--json"]
    assert main([*play, "--run-dir", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 2
    records = [json.loads(line) for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()]
    assert sorted(record["messages"][-1]["content"] for record in records) == ["five", "six"]


async def test_tools_of_a_server_are_discovered(servers: dict[str, str]) -> None:
    environment = environment_at(servers["echo"])
    session = await environment.open(environment.tasks("train")[0], seed=0, sandbox=None)
    tools = {tool.name: tool for tool in session.prompt().tools}
    assert set(tools) == {"echo", "fail"} and tools["echo"].parameters["required"] == ["message"]
    said = await session.step(ToolCall(name="echo", arguments={"message": "hi", "times": 2}))
    assert json.loads(said.text) == {"said": "hihi"} and not said.is_error
    failed = await session.step(ToolCall(name="fail", arguments={}))
    assert failed.is_error and "no luck" in failed.text
    unknown = await session.step(ToolCall(name="steal", arguments={}))
    assert unknown.is_error and "Tools: echo, fail" in unknown.text
    await session.close()


def test_another_server_is_named_at_once(servers: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert main(["play", "--engine=scripted", "--set", f"environment.options.url={servers['echo']}"]) == 78
    seconds = time.monotonic() - began
    told = capsys.readouterr().err
    assert f"The server at {servers['echo']} is EchoEnvironment; it has no financial questions." in told
    assert f"fix: --environment openenv --set environment.options.url={servers['echo']}" in told
    assert seconds < 20  # 2 s beside what the machine is busy with


@pytest.mark.parametrize("environment", ["finqa", "openenv"])
def test_a_mute_server_is_named_after_two_seconds(environment: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"http://127.0.0.1:{mute.getsockname()[1]}"
        options = ["--environment", environment, "--set", f"environment.options.url={address}"]
        assert main(["play", "--engine=scripted", *options]) == 69
    assert f"The server at {address} does not answer within 2 s." in capsys.readouterr().err


def test_a_folder_is_served_in_sandboxes_and_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    options = ["--environment=openenv", "--set", f"environment.options.module={GUESS}", "--sandboxes=4"]
    options += ["--set", "sandbox.options.commands=2"]
    limits = ["--limit=4", "--max-steps=30", "--split=train"]
    assert main(["eval", "random", *options, *limits, "--run-dir", str(run)]) == 0
    assert "sandboxes: 2 instead of 4: provider local runs at most this many of this kind" in capsys.readouterr().err
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert {event["size"] for event in events if event["event"] == "pool"} == {2}, "servers take one session at a time"
    attempts = [json.loads(line) for line in (run / "trajectories.jsonl").read_text().splitlines()]
    assert len(attempts) == 4 and not any("_error" in attempt["status"] for attempt in attempts)
    ended = [attempt for attempt in attempts if attempt["status"] == "completed"]
    assert ended and all(attempt["reward"] <= 1.0 for attempt in ended)


@pytest.mark.slow
def test_a_policy_is_taught_the_form_of_actions_by_chance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["policy", "make", "--environment=openenv", "--set", f"environment.options.module={GUESS}"]
    command += ["--sandboxes=2", "--set", "environment.options.tasks=12", "--demonstrations=8", "--epochs=1"]
    assert main([*command, "--output", str(tmp_path / "none")]) == 78
    assert "--expert random" in capsys.readouterr().err
    made = tmp_path / "made"
    assert main([*command, "--expert=random", "--output", str(made), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == str(made / "policy")
    records = [json.loads(line) for line in (made / "demonstrations" / "trajectories.jsonl").read_text().splitlines()]
    assert len(records) == 8 and {turn["tool_call"]["name"] for one in records for turn in one["turns"]} == {"guess"}
    assert (made / "policy" / "report.json").is_file()
    for step in ("demonstrations", "policy"):
        settings = json.loads((made / step / "settings.json").read_text())
        assert settings["pool"]["sandboxes"] == 2, "both steps are held to the sandboxes that were asked for"


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    create = registry().create
    context = EnvironmentContext(snapshot=None)
    for options, reason in [
        ({}, "needs a server"),
        ({"url": "http://a", "module": "b:c"}, "give one of url, module and image"),
        ({"module": str(tmp_path)}, r"is not an OpenEnv environment: it has no server/app\.py"),
        ({"module": "./nowhere"}, "There is no folder"),
        ({"module": str(GUESS), "python": "/nowhere/python"}, "There is no Python"),
        ({"image": "x", "python": "/usr/bin/python3"}, "python applies to a module"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            create("environment", "openenv", options, context)
