from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.convfinqa_dialogues import cleaned, original, write

from finqa_cli.contracts import EnvironmentContext
from finqa_plugins.environments.convfinqa.config import ConvFinQAConfig
from finqa_plugins.environments.convfinqa.convfinqa_environment import ConvFinQAEnvironment
from finqa_testing.contract import environment_suite


@pytest.mark.parametrize("history", ["own", "gold"])
async def test_convfinqa(tmp_path: Path, history: str) -> None:
    write(tmp_path / "train.json", *map(original, range(1, 6)))
    write(tmp_path / "dev.json", cleaned(7))
    config = ConvFinQAConfig.model_validate({"history": history})
    environment = ConvFinQAEnvironment(config, EnvironmentContext(snapshot=None, data=tmp_path))
    environment_suite.check_tasks(environment)
    row = environment._row(environment.tasks("train")[0])
    await environment_suite.check_text_episodes(environment, [environment.solution(row, turn) for turn in (1, 2, 3, 4)])
    await environment_suite.check_demonstrations(environment, count=40)
