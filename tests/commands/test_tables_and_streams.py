"""What every command prints: tables that fit the screen, results alone on stdout, logs on stderr."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from finqa_cli.app import main
from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME, LocalSnapshots

pytestmark = pytest.mark.usefixtures("_warm_commands")

FINQA = (sys.executable, "-m", "finqa_cli")
EVALUATE = ("eval", "scripted", "--engine=scripted", "--sandbox=local", "--limit=3")
TABLES: dict[str, tuple[str, ...]] = {
    "plugins": ("plugins",),
    "a plugin": ("plugins", "show", "transformers"),
    "shipped settings": ("config", "list"),
    "settings": ("config", "show", "--engine=scripted"),
    "settings and origins": ("config", "show", "--engine=scripted", "--origin"),
    "a model": ("model", "inspect", "embedded"),
    "runs": ("ls", "--all"),
    "a run": ("show", "runs/second"),
    "an episode": ("show", "runs/second", "1"),
    "a run of now": ("top", "runs/second", "--once"),
    "what may be deleted": ("gc",),
    "snapshots": ("snapshot", "list"),
    "a snapshot": ("snapshot", "show", "openenv-finqa"),
    "a question": ("data", "show", "{question}"),
    "sandboxes": ("sandbox", "ls", "--sandbox=local"),
    "rewards": ("rewards", "show"),
    "tests of a reward": ("rewards", "test", "weighted"),
    "a plan": ("plan", "--questions=200"),
    "a comparison": ("compare", "a=runs/first", "b=runs/second", "--no-plots", "--out={out}"),
    "an evaluation": (*EVALUATE, "--run-dir={out}"),
    "checks": ("doctor", "--engine=scripted", "--sandbox=local"),
    "an experiment": ("experiment", "run", "financial_qa_tiny", "--dry-run"),
}
RESULTS = TABLES | {
    "an episode that is played": ("play", "--engine=scripted", "--sandbox=local"),
    "a trial": ("train", "--engine=scripted", "--sandbox=local", "--dry-run", "--run-dir={out}"),
}
PROSE = re.compile(r"^(  )?\S+( \S+)*$|^(Next: |      )finqa |^ *\S+$")
"""Sentences, commands and single paths, which a terminal wraps itself: our line break would cut a command in two."""
LOG_LINE = re.compile(
    r"^(\d{4}-\d\d-\d\dT|chosen: |placed: |eval: |play: |warning: the|\{\"event)|\[(warning|info|error|debug) *\]"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, finqa_home: Path) -> Path:
    """A folder with two evaluations, and a snapshot in the home of all tests."""
    LocalSnapshots(finqa_home).get_or_build(DEFAULT_NAME)
    place = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("FINQA_HOME", str(finqa_home))
        for name, seed in (("first", 0), ("second", 1)):
            assert main([*EVALUATE, "--quiet", f"--set=train.seed={seed}", f"--run-dir=runs/{name}"]) == 0
    return place


@pytest.fixture
def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def arguments(name: str, out: Path) -> list[str]:
    record = json.loads(Path("runs/second/trajectories.jsonl").read_text().splitlines()[0])
    return [word.format(out=out, question=record["task"]["id"]) for word in RESULTS[name]]


@pytest.mark.usefixtures("_in_folder")
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", TABLES)
def test_tables_fit_the_screen(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(arguments(name, tmp_path / "out")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert not [line for line in lines if len(line) > width and not PROSE.match(line)]


@pytest.mark.parametrize("columns", [60, 100])
def test_the_width_of_the_terminal_is_taken(folder: Path, columns: int) -> None:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen([*FINQA, "plugins"], cwd=folder, stdout=theirs, env=variables) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            shown += part
    os.close(ours)
    assert process.returncode == 0
    lines = shown.decode().splitlines()
    assert columns - 25 < max(map(len, lines)) <= columns


def test_in_a_pipe_a_row_is_a_line(folder: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    table = subprocess.run([*FINQA, "plugins"], cwd=folder, capture_output=True, env=variables, text=True, check=True)
    document = subprocess.run([*FINQA, "plugins", "--json"], cwd=folder, capture_output=True, text=True, check=True)
    assert len(table.stdout.splitlines()) == 1 + len(json.loads(document.stdout)["components"])


@pytest.mark.usefixtures("_in_folder")
@pytest.mark.parametrize("name", RESULTS)
def test_results_are_alone_on_stdout(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FINQA_LOG_LEVEL", "debug")
    assert main(arguments(name, tmp_path / "out")) == 0
    text = capsys.readouterr().out
    assert text and not [line for line in text.splitlines() if LOG_LINE.search(line)]
    assert main([*arguments(name, tmp_path / "again"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [True, False])
def test_results_of_a_training_are_alone_on_stdout(folder: Path, tmp_path: Path, as_json: bool) -> None:
    command = [*FINQA, "train", "--quick-test", f"--run-dir={tmp_path / 'run'}", *["--json"] * as_json]
    variables = {**os.environ, "FINQA_LOG_LEVEL": "debug"}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=True)
    if as_json:
        assert json.loads(done.stdout)
    else:
        assert done.stdout.startswith("Held-out questions")
        assert not [line for line in done.stdout.splitlines() if LOG_LINE.search(line)]
        assert "Iteration 1: reward=" in done.stderr
