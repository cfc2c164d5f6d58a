"""Training whose server processes are killed again and again: the same figures, from the same episodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.reliability.chaos import Campaign
from benchmarks.reliability.schedule import draw

KILLS = 5
LATEST = 0.6  # share of the records at which the last kill happens at the latest: the run must not be over before it
ITERATIONS = 12
pytestmark = pytest.mark.slow  # test_pool_local_servers.py kills servers of a pool, at their start as well


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return Campaign(tmp_path_factory.mktemp("killed"), iterations=ITERATIONS)


@pytest.mark.parametrize("seed", range(20))
def test_kills_change_no_figure(seed: int, campaign: Campaign) -> None:
    """Metrics, rewards and adapters are those of the run that nothing happened to, and no process is left."""
    drawn = draw(seed, "local", kinds=("kill server",), number=KILLS)
    strikes = [replace(strike, at=LATEST * strike.at, lasts_s=0.0) for strike in drawn]
    outcome = campaign.suffer(seed, "local", strikes, f"seed-{seed}")
    assert outcome.passed, outcome.document()
    assert outcome.ends == [0] and len(outcome.log) == KILLS, outcome.document()
