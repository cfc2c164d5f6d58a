"""What is wrong is said before a sandbox, an engine or a run folder exists; a stop during a start is obeyed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fixtures.command_calls import failure

from finqa_cli.runs.run_folder import read_run
from finqa_cli.settings.load import load_settings

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test where an engine is made."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an engine was made")

    monkeypatch.setattr("finqa_cli.wiring.stage.make_engine", refuse)


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["train", "--sandboxes", "0"], 78, "greater than or equal to 1"),
        (["train", "--sandboxes", "-1"], 78, "greater than or equal to 1"),
        (["train", "--sandboxes", "1000000000"], 78, "less than or equal to 100000"),
        (["train", "--sandboxes", "100000"], 78, "--set pool.ask_above=100000"),
        (["eval", "embedded", "--sandboxes", "20000"], 78, "20,000 sandboxes are more"),
        (["train", "--model", "embedded", "--sandbox", "daytona"], 77, "DAYTONA_API_KEY is not set"),
        (["play", "--model", "embedded", "--question", "nosuch"], 65, "no question 'nosuch'"),
        (["eval", "embedded", "--snapshot", "nosuch"], 65, "no snapshot 'nosuch'"),
        (["play", "--environment", "./nosuch.py"], 78, "There is no file ./nosuch.py."),
        (["train", "--environment", "./nosuch.py", "--model", "x"], 78, "There is no file ./nosuch.py."),
    ],
)
@pytest.mark.usefixtures("no_engine")
def test_a_mistake_leaves_no_run(
    arguments: list[str], status: int, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAYTONA_API_KEY", raising=False)
    found, said = failure(arguments, capsys)
    assert found == status and reason in said
    assert "--resume" not in said and not list(Path().glob("runs/*"))


def test_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    asked: list[str] = []
    monkeypatch.setattr("typer.confirm", lambda text, err: asked.append(text))
    assert failure(["train", "--sandboxes", "20000"], capsys)[0] == 78
    assert asked == ["Start up to 20,000 sandboxes?"]


def test_a_number_above_the_limit_can_be_set() -> None:
    loaded = load_settings(assignments=["pool.sandboxes=20000", "pool.ask_above=20000"])
    assert loaded.settings.pool.sandboxes == loaded.settings.pool.ask_above == 20_000


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"pid": 2**22 + 5}, "crashed"),
        ({"pid": os.getpid()}, "running"),
        ({"pid": os.getpid(), "pid_started": 1}, "crashed"),
        ({"pid": 2**22 + 5, "host": "another-machine-0000"}, "running"),
        ({}, "running"),
    ],
)
def test_a_run_without_a_process_has_crashed(facts: dict[str, object], status: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"id": "x", "status": "running", **facts}))
    assert read_run(tmp_path)["status"] == status
    (tmp_path / "run.json").write_text(json.dumps({"id": "x", "status": "failed", **facts}))
    assert read_run(tmp_path)["status"] == "failed"


@pytest.mark.slow  # the same with fewer sandboxes: test_leaks.py
@pytest.mark.parametrize("seconds", [1.0, 3.0, 6.0, 10.0, 15.0])
def test_a_start_of_thousands_obeys_a_stop(seconds: float, tmp_path: Path) -> None:
    environment = {**os.environ, "FINQA_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "finqa_cli", "eval", "scripted", "--split", "train", "--sandboxes", "5000"]
    command += ["--attempts", "40", "--run-dir", str(tmp_path / "run"), "--quiet"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) in (130, 143)
    assert time.monotonic() - began < 10, "2 s on a machine without other work"
    assert not list((tmp_path / "home" / "local").glob("*.json"))
