"""`finqa gc`: it shows, asks and deletes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fixtures.command_calls import document, failure
from fixtures.written_runs import begin

from finqa_cli.app import main
from finqa_cli.deletion import lock_folder, unlock_folder
from finqa_cli.processes import start_time
from finqa_cli.runs import checkpoints

pytestmark = pytest.mark.usefixtures("empty_folder")


class Terminal(io.StringIO):
    """What a person types and sees."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FINQA_HOME", str(tmp_path / "home"))


def write_run() -> Path:
    """A finished run with two checkpoints."""
    run = Path("runs/one")
    with begin(run, "train", iterations=2) as folder:
        for number in (1, 2):
            with checkpoints.writing(run, number, {"policy_version": number, "model": "embedded"}) as written:
                (written / "weights").write_bytes(b"x" * 20_000)
        folder.finish("completed")
    return run


def test_without_a_terminal_it_only_shows(capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run()
    assert main(["gc"]) == 0
    told = capsys.readouterr().out
    assert "old checkpoint  runs/one/checkpoints/step_1" in told and "Nothing was deleted; --yes deletes 1 item" in told
    assert document(["gc"], capsys)["deleted"] == [] and checkpoints.iterations(run) == [1, 2]
    assert main(["gc", "--yes"]) == 0
    assert "Deleted 1 item" in capsys.readouterr().out and checkpoints.iterations(run) == [2]
    assert main(["gc", "--yes"]) == 0 and capsys.readouterr().out == "There is nothing to delete.\n"


def test_a_run_in_use_keeps_its_files_also_through_a_link_of_another() -> None:
    run = write_run()
    with begin(Path("runs/two"), "train", iterations=2) as folder:
        folder.finish("completed")
    Path("runs/two/checkpoints").symlink_to("../one/checkpoints")
    lock = lock_folder(run)
    code = "import sys; from finqa_cli.app import main; sys.exit(main(['gc', '--yes']))"
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    finally:
        unlock_folder(lock)
    assert done.returncode == 0 and checkpoints.iterations(run) == [1, 2]
    assert f"in use by process {os.getpid()}" in done.stdout and done.stdout.endswith("Nothing was deleted.\n")
    assert "not inside runs/two, so it is not deleted" in done.stdout


@pytest.mark.parametrize(("answer", "left"), [("n\n", [1, 2]), ("y\n", [2])])
def test_on_a_terminal_it_asks(
    answer: str, left: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", seen := Terminal())
    assert main(["gc"]) == 0
    assert "Delete 1 item, " in seen.getvalue() and checkpoints.iterations(run) == left
    assert capsys.readouterr().out.index("step_1") >= 0, "it is shown before the question"


def test_files_of_ended_servers_go_and_those_of_running_ones_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "home" / "local"
    folder.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        pass
    for pid, started, name in ((process.pid, 5, "local-dead"), (os.getpid(), start_time(os.getpid()), "local-alive")):
        facts = {"schema_version": 2, "id": name, "pid": pid, "started": started, "port": 1}
        (folder / f"{pid}.json").write_text(json.dumps(facts) + "\n")
    for name in ("local-dead", "local-alive", "local-old", "local-starting"):
        (folder / f"{name}.log").write_text("served")
    for name in ("local-old", "local-alive"):
        os.utime(folder / f"{name}.log", (time.time() - 7200,) * 2)
    assert document(["gc", "--yes", "--sandbox=local"], capsys)["notes"] == []
    left = {path.name for path in folder.iterdir()}
    assert left == {f"{os.getpid()}.json", "local-alive.log", "local-starting.log"}


def test_wrong_folders_and_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(["gc"], capsys)["found"] == []
    status, told = failure(["gc", "elsewhere"], capsys)
    assert status == 65 and "There is no folder elsewhere" in told
    assert failure(["gc", "--keep=0"], capsys)[0] == 2
