"""`finqa data check --solutions`: the solutions that come with data, in a real sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixtures.command_calls import document, failure

pytestmark = pytest.mark.usefixtures("empty_folder")

ROWS = [
    {"task_id": 620, "text": "Add.", "code": "def f(a, b):\n    return a + b", "test_list": ["assert f(1, 2) == 3"]},
    {"task_id": 621, "text": "Double.", "code": "def f(a):\n    return a", "test_list": ["assert f(1) == 2"]},
    {
        "task_id": 622,
        "text": "Sum.",
        "code": "import nosuch.part\ndef f(a):\n    return a",
        "test_list": ["assert f(1) == 1"],
    },
]


@pytest.mark.thorough
def test_failing_solutions_and_missing_imports_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    report = document(["data", "check", "train.jsonl", "--for=mbpp", "--solutions"], capsys)
    assert (report["statistics"]["solutions"], report["statistics"]["solutions that pass"]) == (3, 1)
    found = {each["code"]: each for each in report["findings"]}
    assert found["missing_import"]["examples"] == ["nosuch"]
    failed = found["failing_solution"]
    assert failed["count"] == 2 and sorted(each.partition(":")[0] for each in failed["examples"]) == ["621", "622"]
    assert "ModuleNotFoundError" in " ".join(failed["examples"])


@pytest.mark.parametrize("more", [[], ["--for=finqa"]])
def test_solutions_are_those_of_question_files(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, told = failure(["data", "check", "embedded", "--solutions", *more], capsys)
    assert status == 2 and "--for mbpp" in told
