"""Which held-out questions a policy is asked while it learns."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures import finqa_text_rows

from finqa_cli.errors import DataError
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import load_settings
from finqa_cli.training.held_out_questions import choose_questions


def test_companies_that_are_trained_on_are_asked_about_only_where_overlap_is_allowed_and_no_other_is_there(
    tmp_path: Path,
) -> None:
    rows = [finqa_text_rows.original(n, id=f"C{n}/1.pdf-1", filename=f"C{n}/1.pdf") for n in range(1, 5)]
    flags = {"environment.name": "finqa-text", "data.path": finqa_text_rows.write(tmp_path / "dev.json", *rows)}
    strict = load_settings(flags={**flags, "data.eval_split": "dev"}).settings
    lenient = load_settings(flags={**flags, "data.eval_split": "dev", "data.allow_overlap": True}).settings
    some, all_of_them = {"C1", "C2"}, {"C1", "C2", "C3", "C4"}
    for settings in (strict, lenient):
        assert {task.cluster for task in choose_questions(settings, 2, some, Reporter())} == {"C3", "C4"}
    assert {task.cluster for task in choose_questions(lenient, 4, all_of_them, Reporter())} == all_of_them
    with pytest.raises(DataError, match="outside of the training data"):
        choose_questions(strict, 2, all_of_them, Reporter())
    assert choose_questions(strict, None, all_of_them, Reporter()) == []
    assert choose_questions(lenient, 0, some, Reporter()) == []
