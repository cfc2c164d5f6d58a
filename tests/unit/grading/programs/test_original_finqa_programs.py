"""Every gold program of the original FinQA rows that lie beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finqa_cli.grading.programs import ProgramVerdict, compare, parse, step_overlap

FOLDER = Path(__file__).parents[5] / "shared" / "data" / "finqa"


@pytest.mark.parametrize(("name", "rows"), [("test", 1147), ("dev", 883), ("train_partial", 589)])
def test_gold_programs_execute_to_the_gold_answers_and_equal_themselves(name: str, rows: int) -> None:
    file = FOLDER / f"{name}.json"
    if not file.is_file():
        pytest.skip(f"original FinQA ({name}.json) is not beside this checkout")
    data = json.loads(file.read_text(encoding="utf-8"))
    assert len(data) == rows
    for row in data:
        program, answer = row["qa"]["program"], row["qa"]["exe_ans"]
        assert compare(program, program, row["table"], answer) == ProgramVerdict(answer, True, True, ""), row["id"]
        assert step_overlap(program, program) == 1
        assert str(parse(program)) == program
