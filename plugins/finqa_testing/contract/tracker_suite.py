"""Contract of trackers: they accept everything that a run reports, however the run ends, and change none of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from finqa_cli.contracts import Tracker

SETTINGS: dict[str, Any] = {
    "train": {"iterations": 3, "learning_rate": 1e-5},
    "engine": {"name": "transformers", "options": {}},
    "trackers": [],
    "reward": None,
}
LINES: list[dict[str, Any]] = [
    {"iteration": 0, "time": 1767225600.0, "reward_mean": 0.25, "groups": 4},
    {"iteration": 1, "time": 1767225660.0, "reward_mean": None, "dropped": {"zero_variance": 4}, "note": "é"},
    {"iteration": 1, "time": 1767225670.0, "event": "eval", "accuracy": 0.5, "interval": [0.25, 0.75]},
    {},
]


@pytest.mark.parametrize("status", ["completed", "interrupted", "failed"])
def test_it_takes_a_whole_run(subject: Tracker, status: str) -> None:
    """Lines with unknown fields are accepted too, because a later version may write more."""
    settings, lines = copy.deepcopy(SETTINGS), copy.deepcopy(LINES)
    subject.on_run_start(settings)
    for line in lines:
        subject.on_metrics(line)
    subject.on_run_end(status)
    assert (settings, lines) == (SETTINGS, LINES), "what a run reports belongs to the run"


def test_it_takes_a_run_that_ends_before_its_first_line(subject: Tracker) -> None:
    """A run whose engine could not start has no metrics."""
    subject.on_run_start(copy.deepcopy(SETTINGS))
    subject.on_run_end("failed")
