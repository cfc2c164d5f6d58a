"""What manifests say of policies and rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finqa_cli.evaluation.reward_tests import reward_digest, reward_facts
from finqa_cli.runs.run_folder import policy_inputs
from finqa_cli.settings import Settings
from finqa_cli.types import PolicyVersion


def facts(**reward: Any) -> dict[str, Any]:
    return reward_facts(Settings.model_validate({"reward": reward}))


def test_an_engine_without_a_model_has_no_files(empty_folder: Path) -> None:
    (empty_folder / "notes.txt").write_text("of the working directory")
    found = policy_inputs(PolicyVersion(number=0, model=""))
    assert (found["sha256"], found["files"]) == (None, {})
    (empty_folder / "model").mkdir()
    (empty_folder / "model" / "config.json").write_text("{}")
    assert list(policy_inputs(PolicyVersion(number=0, model="model"))["files"]) == ["model/config.json"]


@pytest.mark.parametrize(
    ("name", "option", "before", "after"),
    [
        ("weighted", "spec", "weights: {exact: 2}", "weights: {exact: 3}"),
        ("function", "function", "def compute_score(**all): return 2", "def compute_score(**all): return 3"),
    ],
)
def test_a_reward_is_what_is_in_its_file(name: str, option: str, before: str, after: str, empty_folder: Path) -> None:
    file = empty_folder / "mine.py"
    file.write_text(before)
    first = facts(name=name, options={option: "mine.py"})
    assert first["options"] == {option: "mine.py"} and first["specification"]
    file.write_text(after)
    second = facts(name=name, options={option: "mine.py"})
    assert reward_digest(second) != reward_digest(first)
    file.write_text(before)
    assert reward_digest(facts(name=name, options={option: "mine.py"})) == reward_digest(first)


def test_the_verdict_of_the_environment_has_no_specification_of_its_own() -> None:
    assert facts(name="environment") == {"name": "environment", "options": {}}
