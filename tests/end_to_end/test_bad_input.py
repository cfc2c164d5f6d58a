"""What a user gets for a mistake: one sentence, one remedy, the documented exit code, no traceback."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import finqa_plugins.policies
from finqa_cli.app import main

pytestmark = pytest.mark.usefixtures("empty_folder")

MODEL = Path(finqa_plugins.policies.__file__).parent


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["train", "--model=./nothere"], 78, "no model, run or checkpoint at ./nothere"),
        (["eval", "runs/nothere"], 78, "no model, run or checkpoint at runs/nothere"),
        (["play", "--snapshot=nope", "--engine=scripted"], 65, "no snapshot 'nope'"),
        (["play", "--engine=scriptd"], 78, "Did you mean 'scripted'"),
        (["train", "--optimizer=grop"], 78, "Did you mean 'grpo'"),
        (["train", "--engine=scripted"], 78, "cannot train"),
        (["eval", "scripted", "--split=nosuch"], 65, "no split 'nosuch'"),
        (["play", "--engine=scripted", "--set", "engine.options.unquoted=1"], 78, "Did you mean 'unquoted_years'"),
        (["play", "--engine=scripted", "--question=nope"], 65, "no question 'nope'"),
        (["sft", "nowhere"], 65, "no demonstrations at nowhere"),
        (["train", "--resume=nowhere"], 65, "not a run folder"),
        (["train", "--group-size=1"], 78, "group_size"),
    ],
)
def test_a_mistake_is_explained(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    errors = capsys.readouterr().err
    assert words in errors and "Traceback" not in errors


def test_a_model_folder_without_tokenizer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(MODEL / name, Path("model") / name)
    assert main(["eval", "./model"]) == 78
    assert "has no tokenizer.json" in capsys.readouterr().err


def test_a_full_disk_ends_an_evaluation_with_its_finished_episodes_intact(tmp_path: Path, finqa_home: Path) -> None:
    assert main(["snapshot", "build"]) == 0
    # A limit on file sizes makes writes come back short or fail, as a full disk does, without needing one.
    done = subprocess.run(
        [sys.executable, "-m", "finqa_cli", "eval", "scripted", "--split=dev", "--run-dir=run", "--sandboxes=4"],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert done.returncode == 74, done.stderr
    assert "Cannot write run/trajectories.jsonl" in done.stderr and "Traceback" not in done.stderr
    lines = Path("run/trajectories.jsonl").read_text().splitlines()
    assert lines and all(json.loads(line)["reward"] == 1.0 for line in lines)
    assert json.loads(Path("run/run.json").read_text())["status"] == "failed"


def test_a_home_that_takes_no_files_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("FINQA_HOME", str(home))
    assert main(["snapshot", "build"]) == 0
    (home / "local").write_text("in the way of the folder of server processes")
    command = [sys.executable, "-m", "finqa_cli", "play", "--engine=scripted"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 74
    assert f"Cannot write {home / 'local'}" in done.stderr and "fix: export FINQA_HOME=DIR" in done.stderr
