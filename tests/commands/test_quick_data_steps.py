"""`--quick-test` of the steps that read files: the first rows only, and the result says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finqa_cli.app import main


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Three hundred rows of original FinQA; the last is malformed."""
    made: list[dict[str, Any]] = [
        {
            "id": f"C{number}/2015/page_{number}.pdf-1",
            "filename": f"C{number}/2015/page_{number}.pdf",
            "pre_text": ["Before."],
            "post_text": ["After."],
            "table": [["item", "2015"], ["revenue", str(number)]],
            "qa": {
                "question": f"what is twice the revenue of C{number}?",
                "program": f"multiply({number}, const_2)",
                "answer": str(2 * number),
                "exe_ans": 2.0 * number,
            },
        }
        for number in range(1, 301)
    ]
    del made[-1]["qa"]
    file = tmp_path / "train.json"
    file.write_text(json.dumps(made), encoding="utf-8")
    return file


def call(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    found = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert found == status, printed.err
    return printed.out + printed.err


def test_a_check_looks_at_the_first_rows(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "data", "check", rows, "--out", tmp_path / "whole", status=65)
    said = call(capsys, "data", "check", rows, "--out", tmp_path / "quick", "--quick-test")
    report = json.loads((tmp_path / "quick" / "check_report.json").read_text(encoding="utf-8"))
    assert report["statistics"]["rows"] == 64 and "At most 64 rows were checked." in said
    said = call(capsys, "data", "check", tmp_path, "--quick-test", status=2)
    assert "--quick-test applies to files only:" in said


def test_rows_are_prepared_and_scored(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared = tmp_path / "prepared"
    call(capsys, "data", "prepare", rows, "--out", prepared, "--quick-test", "--splits", "1,0,0")
    manifest = json.loads((prepared / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["config"]["rows_of_each_file"] == 64 and manifest["stats"]["read"] == 64
    answered = tmp_path / "answers.jsonl"
    lines = (prepared / "train.jsonl").read_text(encoding="utf-8").splitlines()
    truths = [json.loads(line)["target_answer"] for line in lines]
    rows_text = "".join(json.dumps({"solution": truth, "truth": truth}) + "\n" for truth in truths)
    answered.write_text(rows_text + "not a row\n", encoding="utf-8")
    plain = ("--set", "reward.options.format=plain")
    call(capsys, "rewards", "score", answered, "ternary", *plain, "--out", tmp_path / "whole", status=65)
    call(capsys, "rewards", "score", answered, "ternary", *plain, "--out", tmp_path / "quick", "--quick-test")
    assert len((tmp_path / "quick" / "scores.jsonl").read_text(encoding="utf-8").splitlines()) == 16
