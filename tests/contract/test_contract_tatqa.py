from __future__ import annotations

from pathlib import Path

from fixtures.tatqa_pages import page, write

from finqa_cli.contracts import EnvironmentContext
from finqa_plugins.environments.tatqa.tatqa_environment import TatQAEnvironment
from finqa_testing.contract import environment_suite


async def test_tatqa(tmp_path: Path) -> None:
    write(tmp_path / "tatqa_dataset_train.json", *map(page, range(1, 6)))
    write(tmp_path / "tatqa_dataset_dev.json", page(7))
    environment = TatQAEnvironment(None, EnvironmentContext(snapshot=None, data=tmp_path))
    environment_suite.check_tasks(environment)
    first = environment.tasks("train")[0]
    session = await environment.open(first, seed=1, sandbox=None)
    gold = environment.demonstrate(session.prompt().messages)
    assert gold is not None
    await environment_suite.check_text_episodes(environment, [gold.text])
    await environment_suite.check_demonstrations(environment, count=40)
