from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from finqa_cli.contracts import EnvironmentContext
from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.forecast_environment import ForecastEnvironment
from finqa_plugins.environments.forecast.make_rows import main
from finqa_testing.contract import environment_suite


def embedded(folder: Path) -> ForecastEnvironment:
    return ForecastEnvironment(None, EnvironmentContext(snapshot=None))


def calibrated(folder: Path) -> ForecastEnvironment:
    return ForecastEnvironment(ForecastConfig(reward="rlcr"), EnvironmentContext(snapshot=None))


def files(folder: Path) -> ForecastEnvironment:
    assert main(["--out", str(folder), "--companies", "6"]) == 0
    return ForecastEnvironment(None, EnvironmentContext(snapshot=None, data=folder))


@pytest.mark.parametrize("make", [embedded, calibrated, files])
async def test_forecast(make: Callable[[Path], ForecastEnvironment], tmp_path: Path) -> None:
    environment = make(tmp_path)
    environment_suite.check_tasks(environment)
    first = environment.tasks(environment.splits()[0])[0]
    session = await environment.open(first, seed=1, sandbox=None)
    gold = environment.demonstrate(session.prompt().messages)
    assert gold is not None
    await environment_suite.check_text_episodes(environment, [gold.text])
    await environment_suite.check_demonstrations(environment, count=40)
