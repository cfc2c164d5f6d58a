"""An evaluation that is killed at any moment is resumed: nothing is lost, nothing is played twice, equal figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fixtures.command_calls import document, failure

from finqa_cli.app import main
from finqa_cli.runs.jsonl import count_lines, read_jsonl
from finqa_cli.runs.run_folder import read_run

ATTEMPTS = 96
COMMAND = ("eval", "scripted", "--limit=48", "--attempts=2", "--sandboxes=2", "--set=pool.sessions_per_sandbox=2")
RESULTS = ("report.json", "metrics.json", "items.csv")
INSTANTS = range(0, 60, 3)

pytestmark = [pytest.mark.usefixtures("_warm_commands", "empty_folder"), pytest.mark.thorough]


def kill_after(recorded: int) -> int:
    """Starts the command, kills it once so many attempts are recorded; returns how many there were then."""
    process = subprocess.Popen(
        [sys.executable, "-m", "finqa_cli", *COMMAND, "--run-dir=killed", "--quiet"],
        env=dict(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    log = Path("killed/trajectories.jsonl")
    try:
        while (count_lines(log) if log.exists() else -1) < recorded and process.poll() is None:
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return sum(1 for _ in read_jsonl(log)) if log.exists() else 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""
    run = tmp_path_factory.mktemp("whole") / "run"
    command = [sys.executable, "-m", "finqa_cli", *COMMAND, f"--run-dir={run}", "--quiet"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return run


@pytest.mark.parametrize(
    "instant", [pytest.param(each, marks=() if each in (0, 15) else pytest.mark.slow) for each in INSTANTS]
)
def test_a_kill_loses_nothing(instant: int, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = kill_after(instant)
    kept = {record["id"]: record for record in read_jsonl(Path("killed/trajectories.jsonl"))}
    assert read_run(Path("killed"))["status"] == "crashed"
    assert instant <= before < ATTEMPTS, "it was killed in the middle"
    resumed = ["eval", "--resume=killed"] if instant % 2 else [*COMMAND, "--run-dir=killed"]
    report = document(resumed, capsys)
    records = list(read_jsonl(Path("killed/trajectories.jsonl")))
    assert report["episodes"] == len(records) == len({record["id"] for record in records}) == ATTEMPTS
    assert {record["id"]: record for record in records if record["id"] in kept} == kept, "finished attempts stay"
    for name in RESULTS:
        assert Path("killed", name).read_bytes() == (whole / name).read_bytes()
    assert main(["eval", "--resume=killed"]) == 0 and "is already finished" in capsys.readouterr().out


def test_faults_are_played_again_and_other_settings_refused(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["eval", "scripted", "--limit=3", "--sandboxes=1"]
    first = document([*small, "--run-dir=run"], capsys)
    log = Path("run/trajectories.jsonl")
    records = list(read_jsonl(log))
    records[1] |= {"status": "sandbox_error", "reward": None, "components": {}, "error": "it died"}
    log.write_text("".join(json.dumps(record) + "\n" for record in records[:2]))
    facts = json.loads(Path("run/run.json").read_text())
    Path("run/run.json").write_text(json.dumps({**facts, "status": "interrupted"}))
    code, said = failure(["eval", "scripted", "--limit=4", "--seed=1", "--sandboxes=1", "--run-dir=run"], capsys)
    assert code == 78 and "eval.limit is 4, not 3" in said and "train.seed is 1, not 0" in said
    code, said = failure(["eval", "random", "--limit=3", "--sandboxes=1", "--run-dir=run"], capsys)
    assert code == 78 and "the policy is random, not scripted" in said
    code, said = failure(["eval", "--resume=run", "--limit=4"], capsys)
    assert code == 2 and "--limit" in said
    assert len(list(read_jsonl(log))) == 2, "nothing was touched"
    assert document([*small, "--run-dir=run"], capsys)["accuracy"] == first["accuracy"]
    assert [record["status"] for record in read_jsonl(log)] == ["completed"] * 3
    (fault,) = read_jsonl(Path("run/trajectories.superseded.jsonl"))
    assert fault["error"] == "it died" and fault["id"] == records[1]["id"]


def test_faults_of_an_evaluation_that_ended_are_played_again(capsys: pytest.CaptureFixture[str]) -> None:
    Path("flaky.py").write_text(
        "from pathlib import Path\n"
        "def tasks():\n    return [{'prompt': str(n), 'split': 'dev'} for n in range(3)]\n"
        "def reset(task):\n"
        "    if task['prompt'] == '1' and not Path('well').exists():\n        raise ConnectionError('gone')\n"
        "def reward(answer):\n    return 1\n"
    )
    command = ["eval", "random", "--environment=flaky.py", "--max-play-retries=0", "--run-dir=run"]
    code, said = failure(command, capsys)
    assert code == 3 and "finqa eval --resume run, which plays those episodes again" in said
    kept = [record["id"] for record in read_jsonl(Path("run/trajectories.jsonl")) if record["reward"] is not None]
    Path("well").touch()
    report = document(["eval", "--resume=run"], capsys)
    assert (report["episodes"], report["faults"], report["accuracy"]) == (3, 0, 1.0)
    assert [record["id"] for record in read_jsonl(Path("run/trajectories.jsonl"))][:2] == kept
    assert document(["eval", "--resume=run"], capsys)["accuracy"] == 1.0, "it is finished, which is no mistake"


def test_folders_named_as_components_are_not_taken_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("finqa", "scripted", "transformers"):
        Path(name).mkdir()
    small = ["eval", "scripted", "--limit=3", "--sandboxes=1", "--run-dir=run"]
    document(small, capsys)
    log, facts = Path("run/trajectories.jsonl"), json.loads(Path("run/run.json").read_text())
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    Path("run/run.json").write_text(json.dumps({**facts, "status": "interrupted"}))
    assert document(["eval", "--resume=run"], capsys)["accuracy"] == 1.0
    assert document(["eval", "--rescore=run", "--grader=strict"], capsys)["after"]["accuracy"] == 1.0


def test_the_same_command_finds_its_run_and_fresh_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["eval", "scripted", "--limit=3", "--sandboxes=1"]
    run = Path(document(small, capsys)["run"])
    log, facts = run / "trajectories.jsonl", json.loads((run / "run.json").read_text())
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    (run / "run.json").write_text(json.dumps({**facts, "status": "interrupted"}))
    assert Path(document([*small, "--fresh"], capsys)["run"]) != run
    assert Path(document([*small, "--seed=1"], capsys)["run"]) != run
    assert Path(document(small, capsys)["run"]) == run and count_lines(log) == 3
    assert Path(document(small, capsys)["run"]) != run, "it is finished"
