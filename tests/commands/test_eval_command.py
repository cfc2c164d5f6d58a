"""What `finqa eval` says when boxes fail instead of the policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finqa_cli.app import main

NOBODY = "environment.options.url=http://127.0.0.1:9"


@pytest.mark.usefixtures("empty_folder")
def test_an_evaluation_without_a_graded_episode_states_no_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    play = ["eval", "scripted", "--limit=2", "--sandboxes=1", "--max-play-retries=0", "--set", NOBODY, "--run-dir=run"]
    assert main(play) == 3
    said = capsys.readouterr()
    assert "no accuracy, for none of 2 episodes could be graded" in said.out and "0.000" not in said.out
    assert "2 of 2 episodes ended in faults, 2 by this: Cannot connect to the environment server" in said.err
    assert "that of the others" not in said.err and "run/trajectories.jsonl" in said.err
    assert json.loads(Path("run/metrics.json").read_text(encoding="utf-8"))["accuracy"] is None
