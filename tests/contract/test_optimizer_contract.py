"""What every optimizer promises, run on every one that is registered."""

from __future__ import annotations

import pytest

from finqa_cli.contracts import Optimizer
from finqa_cli.extend import registry
from finqa_testing.contract.optimizer_suite import *  # noqa: F403  the tests themselves


@pytest.fixture(params=[component.name for component in registry().components("optimizer")])
def subject(request: pytest.FixtureRequest) -> Optimizer:
    made: Optimizer = registry().create("optimizer", request.param, {})
    return made
