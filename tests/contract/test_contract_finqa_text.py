from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.finqa_text_rows import original, prepared, write

from finqa_cli.contracts import EnvironmentContext
from finqa_plugins.environments.finqa_text.text_environment import FinQATextEnvironment
from finqa_testing.contract import environment_suite


def embedded(folder: Path) -> FinQATextEnvironment:
    return FinQATextEnvironment(None, EnvironmentContext(snapshot=None))


def files(folder: Path) -> FinQATextEnvironment:
    write(folder / "train.jsonl", prepared(1), prepared(2))
    write(folder / "dev.json", original(3), original(4))
    return FinQATextEnvironment(None, EnvironmentContext(snapshot=None, data=folder))


@pytest.mark.parametrize("make", [embedded, files])
async def test_finqa_text(make: Callable[[Path], FinQATextEnvironment], tmp_path: Path) -> None:
    environment = make(tmp_path)
    environment_suite.check_tasks(environment)
    first = environment.tasks(environment.splits()[0])[0]
    session = await environment.open(first, seed=1, sandbox=None)
    gold = environment.demonstrate(session.prompt().messages)
    await environment_suite.check_text_episodes(environment, [gold.text])
    await environment_suite.check_demonstrations(environment, count=40)
