"""Records of an evaluation say what is right, and nothing that a policy, a sandbox or a client can read does."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document
from fixtures.own_tables import as_csv, question_rows

from finqa_cli.app import main
from finqa_cli.runs.jsonl import read_jsonl

pytestmark = pytest.mark.usefixtures("empty_folder")

FOR_EVALUATORS = ("trajectories.jsonl", "items.csv", "samples/predictions.jsonl")
"""Files of a run that have the truth."""


def canary(number: int) -> str:
    return f"CANARY{number}TRUTH"


@pytest.fixture
def questions() -> dict[str, str]:
    """Question id -> its truth, a word that is found nowhere else, in a snapshot `canaries`."""
    rows = [{**row, "answer": canary(number)} for number, row in enumerate(question_rows())]
    Path("questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = str(as_csv(Path("own")))
    command = ["data", "import", "tables", source, "--questions=questions.jsonl", "--out=mine"]
    assert main([*command, "--snapshot-name=canaries"]) == 0
    return {str(row["id"]): str(row["answer"]) for row in rows}


def without_truth(record: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in record.items() if name not in ("truth", "values")})


def test_only_the_evaluator_reads_the_truth(
    questions: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    capsys.readouterr()
    evaluated = ["eval", "random", "--snapshot=canaries", "--split=train", "--grader=strict", "--run-dir=run"]
    report = document([*evaluated, "--set=environment.options.hints=true", "--sandboxes=2"], capsys)
    records = list(read_jsonl(Path("run/trajectories.jsonl")))
    assert report["episodes"] == len(records) == 8
    for record in records:
        assert record["truth"] == questions[record["task"]["id"]], "each record has the truth of its own question"
        assert "CANARY" not in without_truth(record), "no message, reply or reason of the grader has it"
    with Path("run/items.csv").open(newline="") as file:
        assert {row["id"]: row["truth"] for row in csv.DictReader(file)}.items() <= questions.items()
    others = [
        path for path in Path("run").rglob("*") if path.is_file() and str(path.relative_to("run")) not in FOR_EVALUATORS
    ]
    assert {"report.json", "events.jsonl"} <= {path.name for path in others}
    assert not [path for path in others if b"CANARY" in path.read_bytes()]
    logs = [path for path in Path().rglob("*.log") if b"CANARY" in path.read_bytes()]
    assert not logs, "no server was given it to print"


def test_what_is_trained_on_or_published_has_no_truth(
    questions: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    document(["eval", "random", "--snapshot=canaries", "--split=train", "--run-dir=run", "--sandboxes=2"], capsys)
    document(["export", "run", "--to=trl-sft", "--min-reward=0", "--out=sft"], capsys)
    document(["export", "run", "--to=openai-jsonl", "--min-reward=0", "--out=chat"], capsys)
    written = [path for folder in ("sft", "chat") for path in Path(folder).rglob("*") if path.is_file()]
    assert written and not [path for path in written if b"CANARY" in path.read_bytes()]


def test_a_person_who_plays_reads_it_after_the_verdict(
    questions: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["play", "--engine=random", "--snapshot=canaries", "--split=train", "--seed=1"]) == 0
    played = capsys.readouterr().out
    assert played.index("Reward 0") < played.index("Right answer: CANARY") < played.index("Next: finqa")
    assert played.count("CANARY") == 1
