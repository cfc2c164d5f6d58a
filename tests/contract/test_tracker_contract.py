"""What every tracker promises, run on those that need no account."""

from __future__ import annotations

from pathlib import Path

import pytest

from finqa_cli.contracts import Tracker, TrackerContext
from finqa_cli.extend import registry
from finqa_testing.contract.tracker_suite import *  # noqa: F403  the tests themselves

SERVICES = {"wandb", "trackio"}
"""Tested with loopback services of their own."""


@pytest.fixture(params=sorted({component.name for component in registry().components("tracker")} - SERVICES))
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Tracker:
    made: Tracker = registry().create("tracker", request.param, {}, TrackerContext(run_dir=tmp_path, run_id="run"))
    return made
