"""What every reward promises, run on every one that is registered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finqa_cli.contracts import Reward
from finqa_cli.extend import registry
from finqa_testing.contract.reward_suite import *  # noqa: F403  the tests themselves

FUNCTION = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(ground_truth in solution_str)
"""


@pytest.fixture(params=[component.name for component in registry().components("reward")])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Reward:
    options: dict[str, Any] = {}
    if request.param == "function":
        (tmp_path / "mine.py").write_text(FUNCTION, encoding="utf-8")
        options["function"] = str(tmp_path / "mine.py")
    made: Reward = registry().create("reward", request.param, options)
    return made
