"""Options of the server: read from its environment, refused when wrong, and told where the schema allows."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fixtures.finqa_server import RunningServer
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.types import ToolCall
from finqa_plugins.environments.openenv_finqa.config import FinQAConfig
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.environments.openenv_finqa.server.run_server import main
from finqa_plugins.environments.openenv_finqa.server.server_episode import ServerOptions
from finqa_plugins.sandboxes.local.server_process import ServerProcess

EX_CONFIG = 78


def test_defaults_are_openenvs() -> None:
    assert ServerOptions.from_variables({}) == ServerOptions(
        max_steps=50, session_timeout_s=1800.0, hints=False, joins=False, grader="openenv"
    )
    assert ServerOptions().described() == ""


def test_what_the_config_says_arrives(tmp_path: Path) -> None:
    config = FinQAConfig(hints=True, joins=True, grader="strict", session_timeout_s=7)
    context = EnvironmentContext(snapshot=write_tiny_snapshot(tmp_path), max_turns=3)
    spec = FinQAEnvironment(config, context).sandbox_spec()
    assert spec is not None
    options = ServerOptions.from_variables(spec.environment)
    assert options == ServerOptions(max_steps=4, session_timeout_s=7.0, hints=True, joins=True, grader="strict-3")
    assert options.described() == "hints, joins within a company, strict-3 grader"


WRONG = [
    ("FINQA_MAX_STEPS", "abc", "FINQA_MAX_STEPS must be a whole number, got 'abc'"),
    ("FINQA_MAX_STEPS", "2.5", "FINQA_MAX_STEPS must be a whole number"),
    ("FINQA_MAX_STEPS", "0", "FINQA_MAX_STEPS must be positive"),
    ("FINQA_MAX_STEPS", "", "FINQA_MAX_STEPS must be a whole number"),
    ("FINQA_SESSION_TIMEOUT", "nan", "FINQA_SESSION_TIMEOUT must be positive"),
    ("FINQA_SESSION_TIMEOUT", "inf", "FINQA_SESSION_TIMEOUT must be positive"),
    ("FINQA_HINTS", "yes", "FINQA_HINTS must be 0 or 1, got 'yes'"),
    ("FINQA_JOINS", "2", "FINQA_JOINS must be 0 or 1"),
    ("FINQA_GRADER", "foo", "FINQA_GRADER must be openenv, strict, strict-1 or strict-3, got 'foo'"),
    ("FINQA_LISTEN_FD", "x", "FINQA_LISTEN_FD is not an open socket"),
    ("FINQA_LISTEN_FD", "9999", "FINQA_LISTEN_FD is not an open socket"),
    ("FINQA_SNAPSHOT", "", "FINQA_SNAPSHOT, the folder of a snapshot, is missing"),
    ("PORT", "http", "PORT must be a whole number"),
    ("PORT", "70000", "PORT must be at most 65535"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_wrong_variable_is_one_line_and_exit_78(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: str, message: str
) -> None:
    variables = {"FINQA_SNAPSHOT": str(write_tiny_snapshot(tmp_path).path), name: value}
    assert main(variables) == EX_CONFIG
    told = capsys.readouterr().err
    assert told.startswith(f"bad environment variable: {message}")
    assert told.count("\n") == 1


def test_the_process_itself_ends_so(tmp_path: Path) -> None:
    variables = {**os.environ, "FINQA_SNAPSHOT": str(tmp_path), "FINQA_GRADER": "foo"}
    command = [sys.executable, "-m", "finqa_plugins.environments.openenv_finqa.server.run_server"]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == EX_CONFIG
    assert (
        ended.stderr
        == "bad environment variable: FINQA_GRADER must be openenv, strict, strict-1 or strict-3, got 'foo'\n"
    )


async def test_all_options_on_a_real_server(tmp_path: Path) -> None:
    config = FinQAConfig(hints=True, joins=True, grader="strict")
    snapshot = write_tiny_snapshot(tmp_path / "snapshot")
    environment = FinQAEnvironment(config, EnvironmentContext(snapshot=snapshot, max_turns=9))
    spec = environment.sandbox_spec()
    assert spec is not None
    server = ServerProcess(spec, tmp_path / "server.log")
    try:
        await server.wait_until_healthy(60.0)
        async with httpx.AsyncClient() as http:
            metadata = (await http.get(server.url + "/metadata")).json()
        assert metadata["description"].endswith("(hints, joins within a company, strict-3 grader)")
        sandbox = RunningServer(server, snapshot, tmp_path / "server.log")
        task = environment.tasks("train")[0]
        session = await environment.open(task, seed=0, sandbox=sandbox)
        names = {"company_name": "acme", "table_name": "income_statement"}
        query = "SELECT 2024 FROM income_statement JOIN balance_sheet WHERE 1 LIMIT 1"
        observation = await session.step(ToolCall(name="sql_query", arguments={**names, "query": query}))
        assert observation.text.startswith('[{"2024":2024}]\nHint: 2024 without quotes')
        await session.step(ToolCall(name="submit_answer", arguments={"answer": "\\boxed{6118}, \\boxed{1}"}))
        assert (await session.grade()).total == 0.0
        await session.close()
    finally:
        await server.stop(3.0)


async def test_another_snapshot_than_expected_is_refused(tmp_path: Path) -> None:
    snapshot = replace(write_tiny_snapshot(tmp_path), digest="sha256:other")
    spec = FinQAEnvironment(None, EnvironmentContext(snapshot=snapshot)).sandbox_spec()
    assert spec is not None
    assert main({**spec.environment, "FINQA_SNAPSHOT": str(snapshot.path)}) == 65
