"""`finqa train` on two real servers, one of which is killed before a sync and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sandboxes.lost_engine import lost_engine

pytestmark = pytest.mark.thorough


async def test_a_server_that_dies_before_a_sync_costs_no_group_and_serves_again_under_the_current_version(
    tmp_path: Path,
) -> None:
    figures = await lost_engine(tmp_path)
    assert len(figures) == 7 and all(figure.limit for figure in figures)
    assert not [figure for figure in figures if not figure.passed]
