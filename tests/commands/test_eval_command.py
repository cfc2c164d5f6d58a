"""What `finqa eval` says: by which rules answers were judged, and when sandboxes fail instead of the policy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from finqa_cli.app import main
from finqa_cli.data import GenerateSpec, generate, write_layout
from finqa_cli.data.dataset import default_grader


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
    assert json.loads(Path("run/metrics.json").read_text(encoding="utf-8"))["accuracy"] is None
    assert main(["ls", "."]) == 0
    assert "- (all faulted)" in capsys.readouterr().out
    assert main(["show", "run"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "score - (all faulted) begun" in shown
    assert "errors 2 environment_error: reset of gone.py raised ConnectionError: the database is gone (" in shown
    gone = Path("gone.py")
    gone.write_text(gone.read_text().replace("raise ConnectionError('the database is gone')", "pass"))
    assert main(["eval", "--resume", "run"]) == 0, "nothing was graded by the code of before"


@pytest.mark.usefixtures("empty_folder")
def test_code_that_always_fails_ends_an_evaluation_soon_and_graded_attempts_pin_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = Path("mine.py")
    code.write_text(
        "def tasks():\n    return [{'prompt': str(n), 'split': 'dev'} for n in range(60)]\n"
        "def reward(answer):\n    return flaot(answer == '1')\n"
    )
    assert main(["eval", "random", "--environment=mine.py", "--run-dir=run"]) == 3
    said = capsys.readouterr().err
    assert "error: 20 attempts in a row failed, at 20 questions" in said, "60 episodes with 3 retries each would be 240"
    assert "reward of mine.py raised NameError: name 'flaot' is not defined (" in said and "mine.py:4)" in said
    code.write_text(code.read_text().replace("return flaot(answer == '1')", "return len(answer) % 2"))
    assert main(["eval", "--resume", "run"]) == 0
    Path("run/run.json").write_text(Path("run/run.json").read_text().replace('"completed"', '"interrupted"'))
    code.write_text(code.read_text() + "\n")
    capsys.readouterr()
    assert main(["eval", "--resume", "run"]) == 78
    assert "restore the original, or start a new run with another --run-dir" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("flags", "rules"),
    [
        (["--grader=openenv"], "environment finqa, grader openenv"),
        (
            ["--reward=ternary", "--set=reward.options.format=plain"],
            "environment finqa, grader strict-3, reward ternary",
        ),
        (["--environment=finqa-text"], "environment finqa-text, grader strict-3"),
    ],
)
def test_the_first_line_says_by_which_rules_answers_were_judged(
    flags: list[str], rules: str, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "scripted", "--limit=1", *flags]) == 0
    assert f"/test ({rules}): accuracy" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(("boxed", "grader"), [(True, "openenv"), (False, "strict-3")])
def test_published_data_is_graded_as_it_was_published_and_other_data_strictly(
    boxed: bool, grader: str, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = generate(GenerateSpec(companies=2, questions=3))
    answers = [f"\\boxed{{{one.answer}}}" if boxed else one.answer for one in made.questions]
    questions = [replace(one, answer=answer, split="test") for one, answer in zip(made.questions, answers, strict=True)]
    write_layout(replace(made, questions=tuple(questions)), Path("data"))
    Path("data/dataset.json").unlink()  # as in the published folder
    assert main(["snapshot", "build", "--snapshot-name=own", "--data=data"]) == 0
    capsys.readouterr()
    assert main(["eval", "scripted", "--snapshot=own", "--run-dir=run"]) == 0
    assert f"own/test (environment finqa, grader {grader}): accuracy 1.000" in capsys.readouterr().out
    assert json.loads(Path("run/settings.json").read_text())["environment"]["options"]["grader"] == grader


@pytest.mark.parametrize(
    ("source", "named", "grader"),
    [
        ("snorkelai/finqa-data at 0123456789ab", "", "openenv"),
        ("Snorkel finqa-data", "strict-1", "strict-1"),
        ("finqa data generate --companies 60", "", "strict"),
        ("mine", "strict-2", "strict"),
    ],
)
def test_the_grader_of_data(source: str, named: str, grader: str) -> None:
    assert default_grader(source, named) == grader
