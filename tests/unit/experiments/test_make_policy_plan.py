"""The steps of `finqa policy make`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finqa_cli.commands import policy
from finqa_cli.experiments.make_policy import SANDBOX, Made, Wanted, plan
from finqa_cli.settings import Settings


@pytest.mark.parametrize(
    ("sandbox", "chosen"),
    [
        ({"name": "local"}, False),
        ({"name": "docker"}, True),
        ({"name": "local", "options": {"commands": 2}}, True),
    ],
)
def test_held_out_tasks_are_answered_in_the_sandbox_that_was_asked_for(sandbox: dict[str, Any], chosen: bool) -> None:
    settings = Settings.model_validate({"sandbox": sandbox})
    _, teaching = plan(settings, Wanted(demonstrations=1, epochs=1.0, careless=0.0, expert="random"), Path("made"))
    assert (f"made/{SANDBOX}" in teaching.arguments) == chosen == (SANDBOX in teaching.reads)


@pytest.mark.parametrize(
    ("expert", "accuracy", "hint"), [("scripted", 0.0, 1), ("scripted", 0.1, 0), ("random", 0.0, 0)]
)
def test_a_policy_that_learned_the_form_alone_is_told_to_take_more_tasks(
    expert: str, accuracy: float, hint: int
) -> None:
    samples = {"questions": 45, "parse_rate": 1.0, "accuracy": accuracy}
    made = Made(policy=Path("p/policy"), training=Path("p/train.toml"), samples=samples, demonstrations=205)
    wanted = Wanted(demonstrations=2000, epochs=8.0, careless=0.5, expert=expert)
    text = policy._text(made, Settings(), wanted)
    assert text.count("None is right: 205 demonstrations") == hint
    assert "Train it: finqa train --environment finqa --model p/policy" in text
