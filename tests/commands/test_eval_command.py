"""What `finqa eval` says when boxes fail instead of the policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finqa_cli.app import main


@pytest.mark.usefixtures("empty_folder")
def test_an_evaluation_without_a_graded_episode_states_no_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    Path("gone.py").write_text(
        "def tasks():\n    return [{'prompt': str(n), 'split': 'dev'} for n in range(4)]\n"
        "def reset():\n    raise ConnectionError('the database is gone')\n"
        "def reward(answer):\n    return 0\n"
    )
    play = ["eval", "random", "--limit=2", "--max-play-retries=0", "--environment=gone.py", "--run-dir=run"]
    assert main(play) == 3
    said = capsys.readouterr()
    assert "no accuracy, because none of 2 episodes could be graded" in said.out and "0.000" not in said.out
    assert (
        "2 of 2 episodes ended in faults, 2 with this error: reset of gone.py raised ConnectionError: the data"
        in said.err
    )
    assert "that of the others" not in said.err and "finqa show run lists the errors" in said.err
    assert "or another --run-dir after a change of its code" in said.err
    gone = Path("gone.py")
    gone.write_text(gone.read_text().replace("raise ConnectionError('the database is gone')", "pass"))
    assert main([*play[:-1], "--run-dir=again"]) == 0
    assert main(["eval", "--resume", "run"]) == 78, "it is of other code"
    assert json.loads(Path("run/metrics.json").read_text(encoding="utf-8"))["accuracy"] is None


@pytest.mark.usefixtures("empty_folder")
def test_prompt_file_and_tools_of_the_server_are_recorded_and_pinned(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = Path("prompt.toml")
    prompt.write_text('system = "Use the tools."\nuser = "{{ company }}: {{ question }}"\n', encoding="utf-8")
    own = ["--set=environment.options.prompt_file=prompt.toml", "--set=environment.options.tools=server"]
    few = ["--split=test", "--limit=1", "--sandboxes=1"]
    assert main(["eval", "scripted", *few, *own, "--run-dir=run"]) == 0
    digests = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))["inputs"]["environment"]
    assert set(digests) == {"prompt_file", "tools"} and all(one.startswith("sha256:") for one in digests.values())
    record = json.loads(Path("run/trajectories.jsonl").read_text(encoding="utf-8"))
    assert record["messages"][0]["content"] == "Use the tools."
    assert record["messages"][1]["content"] == f"{record['task']['cluster']}: {record['task']['prompt']}"
    assert main(["sample", "scripted", *few, *own, "--run-dir=drawn"]) == 0
    prompt.write_text('system = "Use other tools."', encoding="utf-8")
    capsys.readouterr()
    assert main(["sample", "--resume=drawn"]) == 78
    assert "The prompt_file digest is sha256:" in capsys.readouterr().err
