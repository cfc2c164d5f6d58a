"""Recorded attempts are graded again as they would be graded if they were played under the other rules."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure

from finqa_cli.app import main
from finqa_cli.evaluation.rescore import GRADER, count_graded_otherwise, rescoring_settings
from finqa_cli.grading import STRICT
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.runs.run_folder import read_settings
from finqa_cli.settings import from_public_dict
from finqa_cli.statistics import read_outcome

pytestmark = pytest.mark.usefixtures("empty_folder")

SMALL = ("--limit=6", "--sandboxes=2")
PLAYED = (*SMALL, "--grader=openenv", "--run-dir=played")
ANSWERS = ("about 5", "maybe 5", "The answer is 5.", "05", "5 or 6", "5.001")


def verdicts(run: str) -> list[tuple[Any, ...]]:
    fields = ("id", "reward", "components", "explanation", "truth", "values", "status")
    return sorted(
        tuple(json.dumps(record.get(name)) for name in fields) for record in read_jsonl(Path(run, "trajectories.jsonl"))
    )


def change_answers(run: Path, answers: tuple[str, ...]) -> None:
    """Puts other answers, and the truth 5, where the attempts submitted theirs."""
    log = run / "trajectories.jsonl"
    records = list(read_jsonl(log))
    for record, answer in zip(records, answers, strict=True):
        record["turns"][-1]["tool_call"]["arguments"]["answer"] = answer
    log.write_text("".join(json.dumps(record) + "\n" for record in records))


# Not by `strict` for random answers: a policy would have been asked again.
@pytest.mark.parametrize(("engine", "profile"), [("scripted", STRICT), ("random", "strict-1")])
def test_other_graders_judge_as_if_it_had_been_played_with_them(
    engine: str, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document(["eval", engine, *PLAYED], capsys)
    files = {path: path.read_bytes() for path in Path("played").rglob("*") if path.is_file()}
    document(["eval", engine, *SMALL, f"--grader={profile}", "--run-dir=again"], capsys)
    document(["eval", "--rescore=played", f"--grader={profile}", "--run-dir=rescored"], capsys)
    assert verdicts("rescored") == verdicts("again")
    for name in ("report.json", "metrics.json", "items.csv"):
        assert Path("rescored", name).read_bytes() == Path("again", name).read_bytes()
    settings = json.loads(Path("rescored/settings.json").read_text())
    assert settings["environment"]["options"]["grader"] == profile
    assert {path: path.read_bytes() for path in Path("played").rglob("*") if path.is_file()} == files, (
        "it stays as it is"
    )


def test_both_verdicts_are_compared(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    document(["eval", "scripted", *PLAYED], capsys)
    change_answers(Path("played"), ANSWERS)
    monkeypatch.setattr("finqa_plugins.environments.openenv_finqa.gold_truths.Truths.of", lambda self, task: "5")
    strict = document(["eval", "--rescore=played", "--grader=strict-3", "--run-dir=strict"], capsys)
    assert strict["before"]["accuracy"] == 1.0 and strict["now_wrong"] == 2 and strict["now_right"] == 0
    assert strict["after"]["accuracy"] == pytest.approx(4 / 6)
    found = strict["accuracy_difference"]
    assert found["difference"] == pytest.approx(-2 / 6) and found["low"] < found["difference"] < found["high"]
    wrong = [each for each in map(read_outcome, read_jsonl(Path("strict/trajectories.jsonl"))) if not each.correct]
    assert {each.answer for each in wrong} == {"maybe 5", "5 or 6"} and all(each.explanation for each in wrong)
    back = document(["eval", "--rescore=strict", "--grader=strict-1"], capsys)
    assert back["after"]["accuracy"] < strict["after"]["accuracy"] and back["run"].startswith("runs/rescore_")
    document(["report", "played", "strict", "--out=both.html"], capsys)
    assert Path("both.html").is_file()


def test_attempts_that_strict_grades_otherwise_are_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert document(["eval", "scripted", *PLAYED], capsys)["graded_otherwise_by_strict"] == 0
    change_answers(Path("played"), ANSWERS)
    monkeypatch.setattr("finqa_plugins.environments.openenv_finqa.gold_truths.Truths.of", lambda self, task: "5")
    settings = from_public_dict(read_settings(Path("played")))
    assert asyncio.run(count_graded_otherwise(settings, Path("played"), NullReporter())) == 2
    strict = rescoring_settings(Path("played"), {GRADER: "strict"})
    assert asyncio.run(count_graded_otherwise(strict, Path("played"), NullReporter())) == 0


def test_an_evaluation_says_how_many_strict_grades_otherwise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    truths = "finqa_plugins.environments.openenv_finqa.gold_truths.Truths.of"
    monkeypatch.setattr(truths, lambda self, task: "no answer has this name")
    assert main(["eval", "scripted", *PLAYED]) == 0
    command = "strict-3 grades 6 attempts otherwise: finqa eval --rescore played --grader strict"
    assert command in capsys.readouterr().out


def test_rewards_of_texts_are_computed_again(capsys: pytest.CaptureFixture[str]) -> None:
    played = ["eval", "scripted", "--environment=finqa-text", "--limit=8"]
    document([*played, "--run-dir=played"], capsys)
    document([*played, "--reward=graded", "--run-dir=again"], capsys)
    document(["eval", "--rescore=played", "--reward=graded", "--run-dir=rescored"], capsys)
    assert verdicts("rescored") == verdicts("again") != verdicts("played")
    assert Path("rescored/report.json").read_bytes() == Path("again/report.json").read_bytes()


def test_faults_stay_faults(capsys: pytest.CaptureFixture[str]) -> None:
    document(["eval", "scripted", *PLAYED], capsys)
    log = Path("played/trajectories.jsonl")
    first, *others = read_jsonl(log)
    first |= {"status": "sandbox_error", "reward": None, "components": {}, "error": "it died"}
    log.write_text("".join(json.dumps(record) + "\n" for record in (first, *others)))
    rescored = document(["eval", "--rescore=played", "--grader=strict"], capsys)
    assert rescored["after"]["faults"] == 1 and rescored["after"]["accuracy"] == 1.0
    assert rescored["accuracy_difference"]["questions"] == 5


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--rescore=nowhere", "--grader=strict"], 65, "is no evaluation"),
        (["--rescore=played"], 2, "No other rules"),
        (["--rescore=played", "--limit=3"], 2, "--limit would have no effect"),
        (["--rescore=played", "--set=eval.temperature=1"], 2, "affects more than the verdict"),
        (["--rescore=played", "--grader=lenient"], 78, "lenient"),
        (["--rescore=played", "--reward=nosuch"], 78, "nosuch"),
        (["--rescore=played", "--grader=strict", "--run-dir=played"], 78, "holds a run already"),
    ],
)
def test_mistakes(arguments: list[str], code: int, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    document(["eval", "scripted", "--limit=1", "--sandboxes=1", "--run-dir=played"], capsys)
    found, said = failure(["eval", *arguments], capsys)
    assert found == code and reason in said, said


def test_what_grades_in_its_sandbox_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    document(["eval", "scripted", "--environment=code", "--limit=1", "--run-dir=played"], capsys)
    code, said = failure(["eval", "--rescore=played", "--reward=graded"], capsys)
    assert code == 78 and "leave out --reward" in said
