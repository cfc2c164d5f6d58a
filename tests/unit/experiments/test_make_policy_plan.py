"""The steps of `finqa policy make`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finqa_cli.experiments.make_policy import SANDBOX, Wanted, plan
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
    _, policy = plan(settings, Wanted(demonstrations=1, epochs=1.0, careless=0.0, expert="random"), Path("made"))
    assert (f"made/{SANDBOX}" in policy.arguments) == chosen == (SANDBOX in policy.reads)
